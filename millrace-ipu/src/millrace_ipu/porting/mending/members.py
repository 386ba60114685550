"""The attributes that objects of Keras have while `millrace run` runs a program."""

import functools

from millrace_ipu.porting.mending.mending import mending


def members(kind: type, is_served: bool) -> frozenset[str]:
    """Returns the names of the attributes of a class.

    Args:
        kind: the class.
        is_served: whether `millrace run` runs the program, which adds those of Keras 2.
    """
    return _served(kind) if is_served else frozenset(dir(kind))


@functools.cache
def _served(kind: type) -> frozenset[str]:
    with mending():
        return frozenset(dir(kind))
