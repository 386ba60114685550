"""Warnings about options of IPU programs that have no effect: one for each name."""

import logging

from millrace.threads.notes import Notes

notes = Notes()  # of this process


def inert(name: str, advice: str) -> None:
    """Warns, once in a process, that an option does nothing.

    Args:
        name: of the option.
        advice: what to use in its place, a sentence.
    """
    if notes.is_new(name):
        logging.getLogger("millrace").warning("%s has no effect. %s", name, advice)
