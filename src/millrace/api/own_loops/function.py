"""A user's function, compiled together with the Keras variables that it uses.

train(steps, model)      steps, an array -> argument        model, an object -> part of the program
  a program for these shapes and objects?    no -> Program(...)
  -> its results
"""

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.typing import ArrayLike

from millrace._compat.jax_tracing import is_tracing
from millrace._compat.keras_steps import current_scope
from millrace.api.own_loops.compiled import ProgramArguments, ProgramDescription, Subject
from millrace.api.own_loops.host_loop import OnHost
from millrace.api.own_loops.log_subject import is_array, key_of_function, models_of, objects_of
from millrace.api.own_loops.program import LoopProgram
from millrace.api.own_loops.replica_devices import devices_for
from millrace.api.own_loops.replication import ReplicaLaunch, launch_in_force
from millrace.api.own_loops.running import running
from millrace.api.own_loops.scope import Touched, context_of
from millrace.base.interrupts import held_back
from millrace.base.options import whole_number
from millrace.base.pytrees import Array
from millrace.base.records.compilation import Aspect, KeyField
from millrace.base.threads.made_once import MadeOnce
from millrace.compilation.executables.call_description import name_of, new_number
from millrace.compilation.executables.log import current_log
from millrace.compilation.executables.watch import unwatched
from millrace.errors import ModelError, OptionError
from millrace.tools.recording.functions import recorded_call

P = ParamSpec("P")
T = TypeVar("T")


def compile(fn: Callable[P, T], *, replicas: int | None = None) -> "CompiledFunction[P, T]":
    """Compiles a function that uses stock Keras layers, losses, metrics and optimizers.

        @millrace.compile
        def train(steps):
            millrace.repeat(steps, body, infeed=infeed)
            return metric.result()

        strategy.run(train, [1000])

    Numbers and arrays are arguments of the program: it is compiled once for all of their values.
    Everything else is part of the program: another model or another string makes another program.

    With several replicas the function runs side by side on different data. Each replica has its
    own copies of the variables. Keeping them equal is up to the function: by an optimizer that
    averages gradients, say. Element j of an infeed goes to replica `j % replicas`, elements of
    outfeeds have an axis `[replicas]`, and the variables and results are those of replica 0. Each
    replica runs on a device of its own, in one process or several.

    A function with a pipeline over several devices cannot be compiled as one program. It is called
    without compilation, and the host drives the pipeline.

    Args:
        fn: compiled as a whole when it is first called.
        replicas: number of replicas. None uses one, or the number that the caller of the function
            has chosen.

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


_ARRAY = object()  # in place of an argument of the program, among those that are part of it


class CompiledFunction(Generic[P, T]):
    """A function compiled by `millrace.compile`. Call it, or pass it to `strategy.run`."""

    def __init__(self, fn: Callable[P, T], replicas: int | None = None):
        self._fn: Callable[..., Any] = fn
        self._replicas = replicas
        self._programs = MadeOnce[LoopProgram | None]()  # None where the host drives
        self._number = new_number()
        self.__name__: str = getattr(fn, "__name__", type(fn).__name__)
        self.__doc__ = getattr(fn, "__doc__", None)
        self.__wrapped__ = fn

    @property
    def compilations(self) -> int:
        """Number of programs so far: one for each combination of shapes and objects."""
        return sum(program is not None for program in self._programs.values())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs the program, and updates the variables that the function assigns."""
        if context_of(current_scope()) is not None:  # part of the program around it
            args, kwargs = jax.tree.map(_as_traced, (args, kwargs))
            return jax.tree.map(_value_of, self._fn(*args, **kwargs))
        if _is_within_a_trace():
            return self._call(args, kwargs)
        name = name_of(self._fn)
        with running(name), recorded_call(name):
            return self._call(args, kwargs)

    def _call(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        with held_back():
            program, arrays = self._program(args, kwargs)
            if program is not None:
                return program.run(arrays)
        return self._fn(*args, **kwargs)  # in which pipelines hold Ctrl-C back

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Lowered:
        """Returns the program for these arguments before XLA compiles it.

        Raises:
            ModelError: if the function has a pipeline or a loop in it that the host drives.
        """
        program, arrays = self._program(args, kwargs)
        lowered = program and program.lower(arrays)
        if lowered is None:
            raise ModelError(
                f"{self!r} contains a pipeline over several devices, a loop with queues or a long "
                "loop, which the host drives: it is not a single program. Call the function."
            )
        return lowered

    def __repr__(self) -> str:
        return f"<millrace.compile of {self.__name__}>"

    def _program(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[LoopProgram | None, list[Array]]:
        leaves, treedef = jax.tree.flatten((args, kwargs))
        arrays = [_as_argument(leaf) for leaf in leaves if is_array(leaf)]
        static = [_ARRAY if is_array(leaf) else leaf for leaf in leaves]
        launch = self._launch()
        key = (
            launch and launch.key,
            treedef,
            tuple(map(_type, arrays)),
            tuple(x if isinstance(x, str | bool) else id(x) for x in static),
            jax.config.jax_default_device,  # type: ignore[attr-defined]
        )

        def make() -> LoopProgram | None:
            current_log().begin(name_of(self._fn))
            call = _StaticCall(self._fn, self._number, treedef, static, launch)
            with unwatched():
                return _traced(call, arrays, launch)

        return self._programs.get(key, make), arrays

    def _launch(self) -> ReplicaLaunch | None:
        if _is_within_a_trace():  # this function belongs to the replicas of that trace
            return None
        if self._replicas is None:
            return launch_in_force.get()
        return None if self._replicas == 1 else ReplicaLaunch(devices_for(self._replicas))


def _traced(
    call: "_StaticCall", arrays: list[Array], launch: ReplicaLaunch | None
) -> LoopProgram | None:
    try:
        return LoopProgram(call, arrays, call.subject, launch)
    except OnHost:
        if _is_within_a_trace():
            raise
        return None


@dataclass(frozen=True, slots=True)
class _StaticCall:
    """The function with its static arguments, as a function of arrays."""

    fn: Callable[..., object]
    number: int  # of the function
    treedef: jax.tree_util.PyTreeDef  # of all arguments
    static: list[object]  # all leaves, with _ARRAY in place of arrays
    launch: ReplicaLaunch | None

    def __call__(self, arrays: Sequence[Array]) -> Any:
        args, kwargs = self._filled(arrays)
        return jax.tree.map(_value_of, self.fn(*args, **kwargs))

    def subject(self, touched: Touched) -> Subject:
        """Returns a description for the compile log, with the arguments as the user passes them."""
        name, without_arrays = name_of(self.fn), self._filled(itertools.repeat(None))
        objects = objects_of(self.fn, *without_arrays)
        ids = [("function object", str(self.number)), *objects]

        def describe(arguments: ProgramArguments) -> ProgramDescription:
            arrays = cast(list[Array], arguments[-1])
            args, kwargs = self._filled(arrays)
            key = key_of_function(name, self.fn, args, kwargs, touched, ids)
            if self.launch is not None and (group := self.launch.group) is not None:
                replicas = KeyField(Aspect.OPTION, "replicas", str(group.replicas))
                key = replace(key, fields=(*key.fields, replicas))
            return ProgramDescription(key, arrays)

        return Subject(name, self.number, models_of(objects), describe)

    def _filled(self, arrays: Iterable[Array | None]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Returns the arguments by position and by name."""
        arrays = iter(arrays)
        leaves = [next(arrays) if leaf is _ARRAY else leaf for leaf in self.static]
        return jax.tree.unflatten(self.treedef, leaves)


def _type(array: Array) -> tuple[Hashable, ...]:
    if isinstance(array, jax.Array):
        return array.shape, array.dtype, array.weak_type
    return array.shape, jax.dtypes.canonicalize_dtype(array.dtype), False


def _as_argument(leaf: ArrayLike) -> Any:
    if not isinstance(leaf, int | float | complex):
        return leaf
    # A number that 32 bits do not hold is an OverflowError here.
    return np.asarray(leaf, jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype))


def _as_traced(leaf: object) -> Any:
    return jnp.asarray(_as_argument(leaf)) if is_array(leaf) else leaf  # type: ignore[arg-type]


def _is_within_a_trace() -> bool:
    return current_scope() is not None or is_tracing()


def _value_of(leaf: object) -> object:
    return leaf.value if isinstance(leaf, keras.Variable) else leaf
