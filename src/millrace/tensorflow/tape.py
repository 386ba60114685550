"""`tf.GradientTape`, for functions that are converted: its block is a function to differentiate.

    block, variables that it reads -> jax.vjp -> names that it binds, and a pullback
    tape.gradient(loss, variables) -> the pullback of a one for `loss` and zeros for the others

What the block reads is known once it was traced: it is traced again with those variables as
inputs, unless they are those that the same block has read before.
"""

import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from millrace.errors import LoopError, UnsupportedError
from millrace.loops.scope import VariableScope
from millrace.taps.taps import collecting, tap_again
from millrace.tensorflow.conversion.range_loop import defined

_read_before: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


class GradientTape:
    """Differentiates what is computed in its block.

    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x))
    grads = tape.gradient(loss, model.trainable_variables)

    Args:
        persistent: of no meaning: gradients may be asked for several times anyway.
        watch_accessed_variables: whether trainable variables are sources without `watch`.
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True):
        del persistent
        self._watches_variables = watch_accessed_variables
        self._block: _Block | None = None
        self._outputs: list[Any] | None = None

    def __enter__(self) -> "GradientTape":
        raise LoopError(
            "tf.GradientTape is used in a function that was not converted. Decorate it with "
            "tf.function, or call it from a function that is, in a file of its own; elsewhere use "
            "millrace.value_and_grad(fn, variables)."
        )

    def __exit__(self, *exception: object) -> None:
        """Is never reached."""

    def watch(self, tensor: Any) -> Any:
        """Lets gradients by `tensor` be asked for. Call it in the block, with a name."""
        if isinstance(tensor, keras.Variable):
            return tensor
        if self._block is None:
            raise LoopError(
                "tape.watch() was called outside of the tape's block, where nothing is recorded. "
                "Call it in the block, on its own line, with a name: tape.watch(x)."
            )
        return self._block.watch(tensor)

    def run(self, function: Callable[..., Any], given: tuple[Any, ...], place: str) -> list[Any]:
        """Runs the block.

        Args:
            function: the block; returns a function for each name that it binds.
            given: its arguments.
            place: file and line, for messages.

        Returns:
            The values of these names.
        """
        variables = list(_read_before.get(function.__code__, []))
        watched: list[Any] = []
        while True:
            block = self._block = _Block(function, given, variables, watched)
            try:
                values = block.run(self._watches_variables)
            finally:
                self._block = None
            if values is not None:
                break
            variables, watched = block.read, block.watched
        _read_before[function.__code__] = variables
        self._outputs, self._place = block.outputs, place
        self._pullback, self._sources = block.pullback, block.sources
        return values

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = None,
    ) -> Any:
        """Returns gradients of the target, or of the sum of several, in the structure of sources.

        Args:
            target: what the block has computed, and bound to a name.
            sources: variables that it reads, or what it watches; one or a tree of them.
            output_gradients: to multiply those of each target by; None is ones.
            unconnected_gradients: `"zero"` gives zeros and not None for what it does not read.

        Raises:
            LoopError: if the target is none of the names that the block binds.
        """
        if self._outputs is None:
            raise LoopError(
                "tape.gradient() was called before the block of the tape. Compute the target in "
                "`with tf.GradientTape() as tape:`."
            )
        cotangents = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in self._outputs]
        targets = jax.tree.leaves(target)
        factors = [None] * len(targets)
        if output_gradients is not None:
            factors = jax.tree.leaves(output_gradients)
        for leaf, factor in zip(targets, factors, strict=True):
            index = self._index(leaf)
            one = jnp.ones_like(leaf) if factor is None else factor
            cotangents[index] = cotangents[index] + one
        by_variable, by_watched = self._pullback(cotangents)
        found = dict(self._sources(by_variable, by_watched))
        is_zero = getattr(unconnected_gradients, "value", unconnected_gradients) == "zero"

        def gradient(source: Any) -> Any:
            result = found.get(id(source))
            return jnp.zeros(source.shape, source.dtype) if result is None and is_zero else result

        return jax.tree.map(gradient, sources)

    def jacobian(self, *_: Any, **__: Any) -> Any:
        """Is not offered."""
        raise UnsupportedError(
            "tape.jacobian() is not offered here. Write what it differentiates as a function, and "
            "use jax.jacrev(fn)."
        )

    batch_jacobian = jacobian

    def _index(self, leaf: Any) -> int:
        for index, output in enumerate(self._outputs or ()):
            if output is leaf:
                return index
        raise LoopError(
            f"tape.gradient() in {self._place} was asked for a target that the block of the tape "
            "has not bound to a name, or that is no floating-point array. Compute the target, with "
            "all factors, in the block: `loss = ...`."
        )


class _Block:
    """One trace of a block, with some variables and watched values as inputs."""

    def __init__(self, function: Any, given: Any, variables: list[Any], watched: list[Any]):
        self._function, self._given = function, given
        self._variables = variables
        self._met: list[Any] = []  # values that were watched, in order
        self._zeros: list[Any] = []  # added to them, to differentiate by
        self._specs = watched
        self.read: list[Any] = variables
        self.watched: list[Any] = watched
        self.outputs: list[Any] = []
        self.pullback: Any = None

    def watch(self, tensor: Any) -> Any:
        value = jnp.asarray(tensor)
        index = len(self._met)
        if index < len(self._zeros):
            value = value + self._zeros[index]
        self._met.append(value)
        return value

    def run(self, watches_variables: bool) -> list[Any] | None:
        """Returns values of the names; None if inputs were missing, which are then known."""
        statics: list[Any] = []
        kinds: list[Any] = []
        places: list[int | None] = []  # of each watched value among the outputs
        assigned: list[Any] = []

        def differentiated(values: list[Any], zeros: list[Any]) -> Any:
            self._zeros, self._met = zeros, []
            given = zip(self._variables, values, strict=True)
            with TapeScope(given) as scope:
                names, tapped = collecting(self._call)()
                assigned[:] = scope.assigned.values()
                new = scope.values(assigned)
            if watches_variables:
                missing = [v for v in scope.read.values() if _is_source(v)]
                self.read = [*self._variables, *missing]
            leaves, treedef = jax.tree.flatten(names)
            kinds[:] = [treedef]
            floats = [leaf for leaf in leaves if _is_float(leaf)]
            others = [leaf for leaf in leaves if not _is_float(leaf) and _is_array(leaf)]
            statics[:] = [
                _FLOAT if _is_float(leaf) else _OTHER if _is_array(leaf) else leaf
                for leaf in leaves
            ]
            places[:] = [_place(met, floats) for met in self._met]
            return floats, (others, new, tapped)

        values = [variable.value for variable in self._variables]
        zeros = [jnp.zeros(spec.shape, spec.dtype) for spec in self._specs]
        floats, self.pullback, (others, new, tapped) = jax.vjp(
            differentiated, values, zeros, has_aux=True
        )
        self.watched = [jax.ShapeDtypeStruct(met.shape, met.dtype) for met in self._met]
        if len(self.read) > len(values) or len(self.watched) > len(zeros):
            return None
        self.outputs, self._places = floats, places
        for variable, value in zip(assigned, new, strict=True):
            variable.assign(value)
        tap_again(tapped)
        found, rest = iter(floats), iter(others)
        leaves = [
            next(found) if leaf is _FLOAT else next(rest) if leaf is _OTHER else leaf
            for leaf in statics
        ]
        return jax.tree.unflatten(kinds[0], leaves)

    def sources(self, by_variable: list[Any], by_watched: list[Any]) -> Any:
        """Yields gradients by what they are by."""
        for variable, gradient in zip(self._variables, by_variable, strict=True):
            yield id(variable), gradient
        for place, gradient in zip(self._places, by_watched, strict=True):
            if place is not None:
                yield id(self.outputs[place]), gradient

    def _call(self) -> list[Any]:
        return [defined(thunk) for thunk in self._function(*self._given)]


class TapeScope(VariableScope):
    """The scope of a block: `next(iterator)` in it is that of the code around."""

    is_of_tape = True

    @property
    def around(self) -> Any:
        """The scope around."""
        return self._outer


_FLOAT, _OTHER = object(), object()


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _is_float(leaf: Any) -> bool:
    return _is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating)


def _is_source(variable: Any) -> bool:
    return variable.trainable and jnp.issubdtype(jnp.dtype(variable.dtype), jnp.floating)


def _place(met: Any, floats: list[Any]) -> int | None:
    return next((k for k, leaf in enumerate(floats) if leaf is met), None)
