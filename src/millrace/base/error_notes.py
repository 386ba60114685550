"""Notes that say where in a run an error was raised."""

_NOTE = "millrace: "


def add_note(error: BaseException, text: str) -> None:
    """Adds a place to the traceback of an error, which otherwise stays as it is.

    Of several places the first one stays, which is the nearest to the error.
    """
    if not any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ())):
        error.add_note(f"{_NOTE}{text}")
