"""Warnings about options of IPU programs without effect: one for each name."""

import logging

from millrace.extend import Notes

notes = Notes()  # the names that this process has warned about


def warn_no_effect(name: str, advice: str) -> None:
    """Warns, once in a process, that an option has no effect.

    Args:
        name: of the option.
        advice: what to use instead, a sentence.
    """
    if notes.is_new(name):
        logging.getLogger("millrace").warning("%s has no effect. %s", name, advice)
