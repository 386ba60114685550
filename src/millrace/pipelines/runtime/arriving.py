"""Arrays that come from another process, and may not be here yet.

A move returns arrays, which JAX computes or copies on its own, or arrays that this process has to
take when it needs them: `arrived` returns them, and waits if they are late.
"""

from collections.abc import Callable, Iterable, Sequence

import jax

from millrace.pipelines.programs.split import Arrays

Specs = Sequence[jax.ShapeDtypeStruct]


class Message:
    """Arrays that another process sends together."""

    def __init__(self, receive: Callable[[], Arrays]):
        """Remembers how to get the arrays.

        Args:
            receive: waits for the arrays and returns them.
        """
        self._receive: Callable[[], Arrays] | None = receive
        self._arrays: Arrays = []

    def arrays(self) -> Arrays:
        """Returns the arrays, after waiting for them if they have not arrived."""
        if self._receive is not None:
            receive, self._receive = self._receive, None
            self._arrays = receive()
        return self._arrays


class Arriving:
    """One array of a message."""

    __slots__ = ("_index", "_message")

    def __init__(self, message: Message, index: int):
        self._message, self._index = message, index

    def array(self) -> jax.Array:
        """Returns the array, after waiting for it if it has not arrived."""
        return self._message.arrays()[self._index]


MaybeArriving = jax.Array | Arriving


def arrived(value: MaybeArriving) -> jax.Array:
    """Returns an array, after waiting for it if it is to come from another process."""
    return value.array() if isinstance(value, Arriving) else value


def all_arrived(values: Iterable[MaybeArriving]) -> Arrays:
    """Returns arrays, after waiting for those that are to come from another process."""
    return [arrived(value) for value in values]


def arriving(receive: Callable[[], Arrays], number: int) -> list[MaybeArriving]:
    """Returns the arrays of one message.

    Args:
        receive: waits for the arrays and returns them.
        number: of the arrays.
    """
    message = Message(receive)
    return [Arriving(message, index) for index in range(number)]
