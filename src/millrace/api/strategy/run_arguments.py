"""Checks of the arguments of `strategy.run`."""

from collections.abc import Mapping, Sequence

import jax

from millrace.errors import DTypeError, OptionError


def check_run(fn: object, args: object, kwargs: object) -> None:
    """Refuses a function or arguments that cannot run on a device.

    Raises:
        OptionError: if `fn` is a plain Python function, or the arguments are not a sequence and a
            mapping.
        DTypeError: if an argument is float64.
    """
    if not hasattr(fn, "lower") and not isinstance(fn, jax.stages.Compiled):
        raise OptionError(f"run() takes a compiled function. Received: {fn!r}. Set fn=jax.jit(fn).")
    if not isinstance(args, Sequence) or isinstance(args, str | bytes):
        shown = "the array" if hasattr(args, "shape") else repr(args)
        what = f"{shown} of type {type(args).__name__}"
        advice = f"args=({shown},)" if args is not None else "args=()"
        raise OptionError(
            f"args of run() must be a tuple or a list of arguments. Received: {what}. Set {advice}."
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise OptionError(
            "kwargs of run() must be a dict of arguments by name. Received: "
            f"{kwargs!r} of type {type(kwargs).__name__}. Set args to a tuple of all arguments by "
            "position: strategy.run(fn, (a, b))."
        )
    for leaf in jax.tree.leaves((args, kwargs)):
        if str(getattr(leaf, "dtype", "")) == "float64":
            raise DTypeError(
                f"An argument of run() is float64, of shape {leaf.shape}: devices compute in "
                "32 bits or fewer. Cast it with .astype('float32')."
            )
