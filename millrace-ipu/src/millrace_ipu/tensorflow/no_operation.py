"""Lines of the log about parts of TensorFlow and the IPU without effect here: one for each."""

import logging

from millrace.extend import Notes

notes = Notes()  # the lines of this process


def say_once(line: str) -> None:
    """Logs a warning, once in a process."""
    if notes.is_new(line):
        logging.getLogger("millrace").warning("%s", line)


def warn_no_effect(name: str, advice: str) -> None:
    """Warns, once in a process, that an option has no effect: `advice` says what to use instead."""
    say_once(f"{name} has no effect. {advice}")
