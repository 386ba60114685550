"""`tf.function`: a Python function, rewritten where necessary, as a native compiled function.

fn(steps, iterator, model)
a Python number      part of the program: another number compiles another program
an array             an argument
anything else        part of the program, by identity
next(iterator)       outside of loops: an argument, discovered while the function is traced; for
                     replicas `[R, ...]`, an element for each
"""

import functools
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import jax
import keras
import numpy as np

from millrace.errors import LoopError, OptionError
from millrace.extend import CompiledFunction, current_scope, is_tracing, launch_in_force
from millrace_ipu.pytrees import ArrayTree
from millrace_ipu.tensorflow.computed_losses import with_losses
from millrace_ipu.tensorflow.conversion import runtime
from millrace_ipu.tensorflow.conversion.convert import ELEMENTS, compiled_form, converted
from millrace_ipu.tensorflow.conversion.runtime import with_static_numbers
from millrace_ipu.tensorflow.graph_mode import Deferred, is_deferred
from millrace_ipu.tensorflow.iterators import DeviceIterator, ElementNeeded

TracedResult = TypeVar("TracedResult")


def function(
    func: Callable[..., object] | None = None,
    input_signature: object = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    **others: object,
) -> Any:
    """Compiles a whole function on its first call.

    Args:
        func: the function; without it a decorator is returned.
        input_signature: has no effect: shapes come with the arguments.
        autograph: whether loops over tf.range and gradient tapes in it are converted.
        jit_compile: has no effect: everything is compiled.
        **others: further arguments of releases of tf.function, without effect.

    Raises:
        OptionError: for an argument that tf.function never had, or if `func` is no function.
    """
    unknown = set(others) - _OLDER
    if unknown:
        raise OptionError(
            f"tf.function() has no arguments {sorted(unknown)}. It takes func, input_signature, "
            "autograph and jit_compile."
        )
    if func is None:
        return lambda func: function(func, autograph=autograph)
    if not callable(func):
        raise OptionError(
            f"tf.function() takes a function. Received: {func!r} of type {type(func).__name__}. "
            "Decorate a `def`."
        )
    return Function(func, autograph)


_OLDER = {
    "experimental_attributes", "experimental_autograph_options", "experimental_compile",
    "experimental_follow_type_hints", "experimental_implements", "experimental_relax_shapes",
    "name", "reduce_retracing",
}  # fmt: skip


class Function:
    """A function compiled by `tf.function`. Call it, or pass it to `strategy.run`."""

    def __init__(self, python_function: Callable[..., object], autograph: bool = True):
        self.python_function = self.__wrapped__ = python_function
        self.__name__ = getattr(python_function, "__name__", type(python_function).__name__)
        self.__doc__ = python_function.__doc__
        self._converts = autograph
        self._compiled: CompiledFunction | None = None
        self._lock = threading.RLock()
        # Iterators that the function draws from, as earlier calls discovered them.
        self._iterators: dict[Hashable, tuple[DeviceIterator, ...]] = {}
        self._methods: dict[int, tuple[object, Function]] = {}  # by address of the object

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Runs the program, or becomes part of the program that is being traced."""
        if is_deferred((args, kwargs)):
            return Deferred(self, args, kwargs)
        if is_tracing() or current_scope() is not None:
            function = self.python_function
            inline = converted(function) if self._converts else function
            return inline(*args, **kwargs)
        return self._with_elements(CompiledFunction.__call__, DeviceIterator.take, args, kwargs)

    def lower(self, *args: object, **kwargs: object) -> jax.stages.Lowered:
        """Returns the program for these arguments as it was before XLA compiled it."""
        return self._with_elements(CompiledFunction.lower, DeviceIterator.zeros, args, kwargs)

    def experimental_get_tracing_count(self) -> int:
        """Returns the number of programs compiled so far."""
        return 0 if self._compiled is None else self._compiled.compilations

    compilations = property(experimental_get_tracing_count)

    def __get__(self, instance: object, owner: type | None = None) -> "Function":
        """Returns the function bound to an object: one for each object, since it is compiled."""
        if instance is None:
            return self
        cached = self._methods.get(id(instance))
        if cached is None or cached[0] is not instance:
            method = self.python_function.__get__(instance, owner)  # type: ignore[attr-defined]
            cached = self._methods[id(instance)] = instance, Function(method, self._converts)
        return cached[1]

    def __repr__(self) -> str:
        return f"<tf.function {self.__name__}>"

    def _with_elements(
        self,
        run: Callable[..., TracedResult],
        draw: Callable[[DeviceIterator], ArrayTree],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> TracedResult:
        """Runs with an element of each iterator that the function draws from."""
        args, kwargs = with_static_numbers((args, kwargs))
        key = _key((args, kwargs))
        compiled = self._compiled_function()
        iterators = self._iterators.get(key, ())
        elements: tuple[ArrayTree, ...] = ()
        while True:
            elements += tuple(_drawn(draw, each) for each in iterators[len(elements) :])
            drawn = {ELEMENTS: (iterators, elements)} if iterators else {}
            try:
                result = run(compiled, *args, **kwargs, **drawn)
            except ElementNeeded as needed:
                iterators = (*iterators, needed.iterator)
                continue
            except jax.errors.TracerBoolConversionError as error:
                raise _not_converted(self.__name__) from error
            self._iterators[key] = iterators
            return result

    def _compiled_function(self) -> CompiledFunction:
        with self._lock:
            if self._compiled is None:
                form = compiled_form(self.python_function) if self._converts else None
                form = form or _unconverted(self.python_function)
                self._compiled = CompiledFunction(with_losses(form))
            return self._compiled


def _drawn(draw: Callable[[DeviceIterator], ArrayTree], iterator: DeviceIterator) -> ArrayTree:
    """Returns an element; where the function runs as replicas, one for each, `[R, ...]`."""
    launch = launch_in_force.get()
    if launch is None or len(launch.devices) == 1:
        return draw(iterator)
    elements = [draw(iterator) for _ in range(len(launch.devices))]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *elements)


def _unconverted(function: Callable[..., TracedResult]) -> Callable[..., TracedResult]:
    """Returns a function that is not rewritten, called in the way that rewritten ones are."""

    @functools.wraps(function)
    def call(*args: object, **kwargs: Any) -> TracedResult:
        elements = kwargs.pop(ELEMENTS, ((), ()))
        args, kwargs = runtime.plain((args, kwargs))
        with runtime.entering(elements):
            return function(*args, **kwargs)

    return call


def _key(arguments: object) -> Hashable:
    """Returns a key of the arguments that leaves out the values of arrays."""
    leaves, treedef = jax.tree.flatten(arguments)
    return treedef, tuple(
        leaf if isinstance(leaf, str) else None if hasattr(leaf, "dtype") else id(leaf)
        for leaf in leaves
    )


def _not_converted(name: str) -> LoopError:
    return LoopError(
        f"{name} tests a value in an `if` or a `while` that only the device knows. Loops over "
        "tf.range() are converted, but these are not: use tf.where(), tf.cond() or "
        "tf.while_loop() instead."
    )


def custom_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a function a gradient of its own.

    Args:
        f: returns its result, and a function of the gradient of that result; this returns the
            gradients of the arguments, one or a tuple of several. Keyword arguments have none.
    """

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        values = jax.tree.map(_value, args)
        return jax.custom_gradient(functools.partial(f, **kwargs))(*values)

    return call


def _value(argument: Any) -> Any:
    return argument.value if isinstance(argument, keras.Variable) else argument
