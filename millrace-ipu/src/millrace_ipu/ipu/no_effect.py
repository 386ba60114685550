"""Warnings about options of IPU programs without effect: one for each name."""

from millrace_ipu.tensorflow.no_operation import notes as notes
from millrace_ipu.tensorflow.no_operation import say_once


def warn_no_effect(name: str, advice: str) -> None:
    """Warns, once in a process, that an option has no effect: `advice` says what to use instead."""
    say_once(f"{name} has no effect. {advice}")
