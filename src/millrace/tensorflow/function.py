"""`tf.function`: a Python function, rewritten where need be, as a native compiled function.

fn(steps, iterator, model)
a Python number      part of the program: another one is another program
an array             an argument
anything else        part of the program, by identity
next(iterator)       outside of loops: an argument that is found while the function is traced
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

import jax

from millrace._compat.jax_tracing import is_tracing
from millrace._compat.keras_scope import current_scope
from millrace.errors import LoopError, OptionError
from millrace.loops.function import CompiledFunction
from millrace.tensorflow.conversion import runtime
from millrace.tensorflow.conversion.convert import ELEMENTS, called, compiled_form
from millrace.tensorflow.conversion.runtime import with_static_numbers
from millrace.tensorflow.graph_mode import Deferred, is_deferred
from millrace.tensorflow.iterators import DeviceIterator, Needed


def function(
    func: Callable[..., Any] | None = None,
    input_signature: Any = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    experimental_compile: bool | None = None,
    **others: Any,
) -> Any:
    """Compiles a function as a whole, when it is first called.

    Args:
        func: the function; without it a decorator is returned.
        input_signature: of no meaning: shapes come with the arguments.
        autograph: whether loops over tf.range and gradient tapes in it are converted.
        jit_compile: of no meaning: everything is compiled.
        reduce_retracing: of no meaning.
        experimental_compile: an older name of `jit_compile`.
        **others: older names of the above.

    Raises:
        OptionError: for an argument that it never had, or something that is no function.
    """
    del input_signature, jit_compile, reduce_retracing, experimental_compile
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
    "experimental_implements",
    "experimental_autograph_options",
    "experimental_attributes",
    "experimental_relax_shapes",
    "experimental_follow_type_hints",
    "name",
}


class Function:
    """What `tf.function` returns. Call it, or give it to `strategy.run`."""

    def __init__(self, python_function: Callable[..., Any], autograph: bool = True):
        self.python_function = self.__wrapped__ = python_function
        self.__name__ = getattr(python_function, "__name__", type(python_function).__name__)
        self.__doc__ = python_function.__doc__
        self._converts = autograph
        self._compiled: CompiledFunction | None = None
        self._lock = threading.RLock()
        self._draws: dict[Any, tuple[DeviceIterator, ...]] = {}  # found by earlier calls
        self._bound: dict[int, tuple[Any, Function]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program; as part of a program that is being traced, if there is one."""
        if is_deferred((args, kwargs)):
            return Deferred(self, args, kwargs)
        if is_tracing() or current_scope() is not None:
            inline = called if self._converts else _same
            return inline(self.python_function)(*args, **kwargs)
        return self._with_elements(CompiledFunction.__call__, DeviceIterator.take, args, kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Returns the program for these arguments before XLA compiles it."""
        return self._with_elements(CompiledFunction.lower, DeviceIterator.zeros, args, kwargs)

    def experimental_get_tracing_count(self) -> int:
        """Returns how many programs have been made so far."""
        return 0 if self._compiled is None else self._compiled.compilations

    @property
    def compilations(self) -> int:
        """How many programs have been made so far."""
        return self.experimental_get_tracing_count()

    def __get__(self, instance: Any, owner: Any = None) -> "Function":
        """Returns the function of a method, one for each object."""
        if instance is None:
            return self
        found = self._bound.get(id(instance))
        if found is None or found[0] is not instance:
            method = self.python_function.__get__(instance, owner)  # type: ignore[attr-defined]
            found = self._bound[id(instance)] = instance, Function(method, self._converts)
        return found[1]

    def __repr__(self) -> str:
        return f"<tf.function {self.__name__}>"

    def _with_elements(self, run: Any, element: Any, args: Any, kwargs: Any) -> Any:
        """Runs with an element of each iterator that the function takes one from."""
        args, kwargs = with_static_numbers((args, kwargs))
        key = _key((args, kwargs))
        compiled = self._compiled_function()
        iterators = self._draws.get(key, ())
        elements: tuple[Any, ...] = ()
        while True:
            elements += tuple(element(each) for each in iterators[len(elements) :])
            more = {ELEMENTS: (iterators, elements)} if iterators else {}
            try:
                result = run(compiled, *args, **kwargs, **more)
            except Needed as needed:
                iterators = (*iterators, needed.iterator)
                continue
            except jax.errors.TracerBoolConversionError as error:
                raise _not_converted(self.__name__) from error
            self._draws[key] = iterators
            return result

    def _compiled_function(self) -> CompiledFunction:
        with self._lock:
            if self._compiled is None:
                form = compiled_form(self.python_function) if self._converts else None
                self._compiled = CompiledFunction(form or _as_it_is(self.python_function))
            return self._compiled


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that is not rewritten, with its numbers and elements as others have."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        elements = kwargs.pop(ELEMENTS, ((), ()))
        args, kwargs = runtime.plain((args, kwargs))
        with runtime.entering(elements):
            return function(*args, **kwargs)

    return call


def _key(arguments: Any) -> Any:
    """Returns what arguments are apart from the values of arrays."""
    leaves, treedef = jax.tree.flatten(arguments)
    return treedef, tuple(
        leaf if isinstance(leaf, str) else None if hasattr(leaf, "dtype") else id(leaf)
        for leaf in leaves
    )


def _same(function: Any) -> Any:
    return function


def _not_converted(name: str) -> LoopError:
    return LoopError(
        f"{name} asks in an `if` or a `while` for a value that only the device knows. Loops over "
        "tf.range() are converted, and these are not: compute with tf.where(), tf.cond() or "
        "tf.while_loop() in their place."
    )
