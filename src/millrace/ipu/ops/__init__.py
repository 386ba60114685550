"""Operations of IPU programs."""
