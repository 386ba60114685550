"""What cannot be part of one program: the host drives it, such as a pipeline over several devices.

trace of a function -> require_host() raises OnHost -> the function is called as it is, untraced
"""

from millrace._compat.jax import is_tracing
from millrace._compat.keras_scope import current_scope


class OnHost(BaseException):
    """Ends the trace of a function that the host has to drive."""


def require_host() -> None:
    """Ends the trace that is going on, if any.

    Raises:
        OnHost: caught by what had begun the trace of a function of the user's.
    """
    if is_tracing() or current_scope() is not None:
        raise OnHost
