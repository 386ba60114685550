"""What a training is made of, so that it can go on from a checkpoint with the same numbers."""
