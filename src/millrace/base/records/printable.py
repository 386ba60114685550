"""Texts of files, such as names of layers, for a terminal."""


def printable(text: str) -> str:
    """Escapes characters that a terminal would act on, and those beyond ASCII."""
    text = text.encode("ascii", "backslashreplace").decode()
    return "".join(
        each if each == "\n" or each.isprintable() else repr(each)[1:-1] for each in text
    )
