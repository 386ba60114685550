"""Lines of the log about parts of TensorFlow without effect here: one for each."""

import logging

from millrace.extend import Notes

notes = Notes()  # the lines of this process


def say_once(line: str) -> None:
    """Logs a warning, once in a process."""
    if notes.is_new(line):
        logging.getLogger("millrace").warning("%s", line)
