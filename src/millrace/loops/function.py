"""A function of the user's, compiled with the Keras variables that it touches.

train(steps, model)      steps, an array -> argument        model, an object -> part of the program
  a program for these shapes and objects?    no -> Program(...)
  -> its results
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import keras
import numpy as np

from millrace._compat.jax_tracing import is_tracing
from millrace._compat.keras_scope import current_scope
from millrace.arguments import checked
from millrace.compiling.call_description import name_of, new_number
from millrace.compiling.log import current_log
from millrace.compiling.watch import unwatched
from millrace.errors import ModelError, OptionError
from millrace.loops.compiled import Subject
from millrace.loops.host_driven import OnHost
from millrace.loops.log_subject import is_array, key_of_function, models_of, objects_of
from millrace.loops.program import Program
from millrace.loops.replication import Launch, current_launch
from millrace.loops.scope import Touched
from millrace.options import whole_number
from millrace.records.compilation import Aspect, KeyField
from millrace.threads.made_once import MadeOnce


@checked
def compile(fn: Callable[..., Any], *, replicas: int | None = None) -> "CompiledFunction":
    """Compiles a function that uses Keras layers, losses, metrics and optimizers as they are.

        @millrace.compile
        def train(steps):
            millrace.repeat(steps, body, infeed=infeed)
            return metric.result()

        strategy.run(train, [1000])

    Numbers and arrays are arguments of the program: it is compiled once for all of their values.
    Everything else is part of it: another model or another text is another program.

    As several replicas the function runs side by side, each replica with copies of the variables
    of its own, which are equal as long as the function sees to it: by CrossReplicaOptimizer, say.
    Element j of an infeed goes to replica j % replicas, elements of outfeeds have an axis
    `[replicas]`, and variables and results are those of replica 0. All replicas run on one device.

    A function that only the host can drive, since there is a pipeline over several devices in it,
    is called as it is, each time.

    Args:
        fn: what is compiled, as a whole and when it is first called.
        replicas: how many times the program runs on data of its own. None is once, or as often as
            who runs the function says.

    Raises:
        OptionError: if `fn` is not a function, or `replicas` not a number of at least 1.
    """
    if not callable(fn):
        raise OptionError(
            f"compile() takes a function. Received: {fn!r} of type {type(fn).__name__}. Write "
            "@millrace.compile above a function; to compile a Keras model, call model.compile()."
        )
    count = None if replicas is None else whole_number("replicas", replicas, 1)
    return CompiledFunction(fn, count)


class CompiledFunction:
    """What `millrace.compile` returns. Call it, or give it to `strategy.run`."""

    def __init__(self, fn: Callable[..., Any], replicas: int | None = None):
        self._fn, self._replicas = fn, replicas
        self._programs = MadeOnce[Program | None]()  # None where the host drives
        self._number = new_number()
        self.__name__ = getattr(fn, "__name__", type(fn).__name__)
        self.__doc__ = getattr(fn, "__doc__", None)
        self.__wrapped__ = fn

    @property
    def compilations(self) -> int:
        """How many programs have been made so far: one for each set of shapes and objects."""
        return sum(program is not None for program in self._programs.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program, and gives the variables that it assigns their new values."""
        program, arrays = self._program(args, kwargs)
        return self._fn(*args, **kwargs) if program is None else program.run(arrays)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Returns the program for these arguments before XLA compiles it.

        Raises:
            ModelError: if there is none, since the host drives the function.
        """
        program, arrays = self._program(args, kwargs)
        if program is None:
            raise ModelError(
                f"{self!r} has a pipeline over several devices in it, which is no one program. "
                "Call it."
            )
        return program.lower(arrays)

    def __repr__(self) -> str:
        return f"<millrace.compile of {self.__name__}>"

    def _program(self, args: Any, kwargs: Any) -> tuple[Program | None, list[Any]]:
        leaves, treedef = jax.tree.flatten((args, kwargs))
        kinds = [is_array(leaf) for leaf in leaves]
        arrays = [_as_argument(x) for x, array in zip(leaves, kinds, strict=True) if array]
        rest = [x for x, array in zip(leaves, kinds, strict=True) if not array]
        launch = self._launch()
        key = (
            launch and launch.devices,
            treedef,
            tuple(kinds),
            tuple(map(_type, arrays)),
            tuple(x if isinstance(x, str | bool) else id(x) for x in rest),
            jax.config.jax_default_device,  # type: ignore[attr-defined]
        )

        def make() -> Program | None:
            current_log().begin(name_of(self._fn))
            call = _Call(self._fn, self._number, treedef, kinds, rest, launch)
            with unwatched():
                return _traced(call, arrays, launch)

        return self._programs.get(key, make), arrays

    def _launch(self) -> Launch | None:
        if _is_within_a_trace():  # whose replicas this function's are
            return None
        return current_launch() if self._replicas is None else Launch(self._replicas)


def _traced(call: "_Call", arrays: list[Any], launch: Launch | None) -> Program | None:
    try:
        return Program(call, arrays, call.subject, launch)
    except OnHost:
        if _is_within_a_trace():
            raise
        return None


class _Call:
    """The function with all arguments in place that are no arrays; it keeps them alive."""

    def __init__(
        self,
        fn: Any,
        number: int,
        treedef: Any,
        is_array: list[bool],
        rest: list[Any],
        launch: Launch | None,
    ):
        self._fn, self._number, self._launch = fn, number, launch
        self._treedef, self._is_array, self._rest = treedef, is_array, rest

    def __call__(self, arrays: list[Any]) -> Any:
        args, kwargs = self._arguments(arrays)
        return jax.tree.map(_bare, self._fn(*args, **kwargs))

    def subject(self, touched: Touched, seconds: float) -> Subject:
        """Returns what the compile log is told: with the arguments as the user passes them."""
        name = name_of(self._fn)
        args, kwargs = self._arguments([None] * len(self._is_array))
        objects = objects_of(self._fn, args, kwargs)
        identity = [("function object", str(self._number)), *objects]

        def key(arguments: tuple[Any, ...]) -> Any:
            args, kwargs = self._arguments(arguments[-1])
            made = key_of_function(name, self._fn, args, kwargs, touched, identity)
            count = 1 if self._launch is None else self._launch.replicas
            if count == 1:
                return made
            replicas = KeyField(Aspect.OPTION, "replicas", str(count))
            return replace(made, fields=(*made.fields, replicas))

        models = models_of(objects)
        return Subject(name, self._number, models, key, lambda given: given[-1], seconds)

    def _arguments(self, arrays: list[Any]) -> Any:
        given, rest = iter(arrays), iter(self._rest)
        leaves = [next(given) if array else next(rest) for array in self._is_array]
        return jax.tree.unflatten(self._treedef, leaves)


def _type(array: Any) -> tuple[Any, ...]:
    if isinstance(array, jax.Array):
        return array.shape, array.dtype, array.weak_type
    return array.shape, jax.dtypes.canonicalize_dtype(array.dtype), False


def _as_argument(leaf: Any) -> Any:
    if not isinstance(leaf, int | float | complex):
        return leaf
    # A number that 32 bits do not hold is an OverflowError here.
    return np.asarray(leaf, jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype))


def _is_within_a_trace() -> bool:
    return current_scope() is not None or is_tracing()


def _bare(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, keras.Variable) else leaf
