"""Texts for a terminal: numbers of things, and texts of files, such as names of layers."""


def counted(number: int, name: str) -> str:
    """Returns a number with what it counts: `1 step`, `1,200 steps`."""
    return f"{number:,} {name}" if number == 1 else f"{number:,} {name}s"


def printable(text: str) -> str:
    """Escapes characters that a terminal would act on, and those beyond ASCII."""
    text = text.encode("ascii", "backslashreplace").decode()
    return "".join(
        each if each == "\n" or each.isprintable() else repr(each)[1:-1] for each in text
    )
