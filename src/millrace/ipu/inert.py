"""Warnings about options of IPU programs that have no effect: one for each name."""

import logging

_said: set[str] = set()


def inert(name: str, advice: str) -> None:
    """Warns, once in a process, that an option does nothing.

    Args:
        name: of the option.
        advice: what to use in its place, a sentence.
    """
    if is_new(name):
        logging.getLogger("millrace").warning("%s has no effect. %s", name, advice)


def is_new(note: str) -> bool:
    """Whether `note` was not said before; from now on it was."""
    is_new = note not in _said
    _said.add(note)
    return is_new


def forget() -> None:
    """Lets everything be said again."""
    _said.clear()
