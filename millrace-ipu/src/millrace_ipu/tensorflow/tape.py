"""`tf.GradientTape` in converted functions: its block becomes a function to differentiate.

    block, variables that it reads -> jax.vjp -> names that it binds, and a pullback
    tape.gradient(loss, variables) -> the pullback of a one for `loss` and zeros for the others

Only a trace shows which variables the block reads: it is then traced again with these as inputs,
unless they are the ones that the same block has read before.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.typing import ArrayLike

from millrace.errors import LoopError, UnsupportedError
from millrace.extend import VariableScope, collecting, tap_again
from millrace_ipu.pytrees import ArrayTree, Spec
from millrace_ipu.tensorflow.conversion.range_loop import defined

_read_before: weakref.WeakKeyDictionary[CodeType, list[keras.Variable]] = (
    weakref.WeakKeyDictionary()
)


class GradientTape:
    """Computes gradients of the values that its block computes.

    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x))
    grads = tape.gradient(loss, model.trainable_variables)

    Args:
        persistent: has no effect: `gradient` may be called several times in any case.
        watch_accessed_variables: whether trainable variables are sources without `watch`.
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True):
        self._watches_variables = watch_accessed_variables
        self._block: _TapedBlock | None = None
        self._outputs: list[jax.Array] | None = None

    def __enter__(self) -> "GradientTape":
        raise LoopError(
            "tf.GradientTape is used in a function that was not converted. Decorate the function "
            "with tf.function, or define it in a file and call it from a function that has the "
            "decorator; elsewhere use millrace.value_and_grad(fn, variables)."
        )

    def __exit__(self, *exception: object) -> None:
        pass  # `__enter__` raises

    def watch(self, tensor: Any) -> Any:
        """Makes `tensor`, or each of a list, a source of gradients, in the block, with a name."""
        if isinstance(tensor, list | tuple):
            return [self.watch(each) for each in tensor]
        if isinstance(tensor, keras.Variable):
            return tensor
        if self._block is None:
            raise LoopError(
                "tape.watch() was called outside of the tape's block, where nothing is recorded. "
                "Call it in the block, on its own line, with a name: tape.watch(x)."
            )
        return self._block.watch(tensor)

    def run(
        self,
        function: Callable[..., Sequence[Callable[[], object]]],
        args: tuple[object, ...],
        location: str,
    ) -> list[Any]:
        """Runs the block.

        Args:
            function: the block; returns a thunk for each name that it binds.
            args: arguments of the block.
            location: file and line, for messages.

        Returns:
            The values of these names.
        """
        code: CodeType = function.__code__  # type: ignore[attr-defined]
        block = _TapedBlock(function, args, list(_read_before.get(code, [])), [])
        while (values := self._run(block)) is None:
            block = _TapedBlock(function, args, block.read, block.watched)
        _read_before[code] = block.read
        self._outputs, self._location = block.outputs, location
        self._pullback, self._sources = block.pullback, block.sources
        return values

    def _run(self, block: "_TapedBlock") -> list[Any] | None:
        self._block = block
        try:
            return block.run(self._watches_variables)
        finally:
            self._block = None

    def gradient(
        self,
        target: ArrayTree,
        sources: object,
        output_gradients: ArrayTree = None,
        unconnected_gradients: object = None,
    ) -> Any:
        """Returns gradients of the target, or of the sum of targets, in the structure of `sources`.

        Args:
            target: values that the block has computed and bound to names.
            sources: variables that the block reads, or values that it watches; one of them or a
                nested structure.
            output_gradients: factors for the gradients of each target; None means ones.
            unconnected_gradients: `"zero"` gives zeros, instead of None, for sources that the
                block does not read.

        Raises:
            LoopError: if no name that the block binds has the target as its value.
        """
        if self._outputs is None:
            raise LoopError(
                "tape.gradient() was called before the block of the tape. Compute the target in "
                "`with tf.GradientTape() as tape:`."
            )
        cotangents = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in self._outputs]
        targets = jax.tree.leaves(target)
        factors = jax.tree.leaves(output_gradients) or list(map(jnp.ones_like, targets))
        for leaf, factor in zip(targets, factors, strict=True):
            index = self._index(leaf)
            cotangents[index] = cotangents[index] + factor
        by_variable, by_watched = self._pullback(cotangents)
        gradients = dict(self._sources(by_variable, by_watched))
        is_zero = getattr(unconnected_gradients, "value", unconnected_gradients) == "zero"

        def gradient(source: keras.Variable | jax.Array) -> jax.Array | None:
            result = gradients.get(id(source))
            return jnp.zeros(source.shape, source.dtype) if result is None and is_zero else result

        return jax.tree.map(gradient, sources)

    def jacobian(self, *_: object, **__: object) -> Any:
        """Raises an error: Jacobians are not supported."""
        raise UnsupportedError(
            "tape.jacobian() is not supported. Write the computation as a function, and use "
            "jax.jacrev(fn)."
        )

    batch_jacobian = jacobian

    def _index(self, leaf: jax.Array) -> int:
        index = _index_in(self._outputs or [], leaf)
        if index is not None:
            return index
        raise LoopError(
            f"The target of tape.gradient() in {self._location} is not bound to a name in the "
            "block of the tape, or is not a floating-point array. Compute the target, with all "
            "factors, in the block: `loss = ...`."
        )


class _TapedBlock:
    """One trace of a block, with some variables and watched values as inputs."""

    def __init__(
        self,
        function: Callable[..., Sequence[Callable[[], object]]],
        args: tuple[object, ...],
        variables: list[keras.Variable],
        watched: list[Spec],
    ):
        self._function, self._args, self._variables = function, args, variables
        self._watched: list[jax.Array] = []  # in order
        self._zeros: list[jax.Array] = []  # added to the watched values: gradients are by these
        self.read, self.watched = variables, watched
        self.outputs: list[jax.Array] = []
        self.pullback: Any = None

    def watch(self, tensor: ArrayLike) -> jax.Array:
        value = jnp.asarray(tensor)
        index = len(self._watched)
        if index < len(self._zeros):
            value = value + self._zeros[index]
        self._watched.append(value)
        return value

    def run(self, watches_variables: bool) -> list[Any] | None:
        """Returns the values of the names; None if inputs were missing, which it records."""
        structure: list[Any] = []
        indices: list[int | None] = []  # of each watched value among the outputs
        assigned: list[keras.Variable] = []

        def differentiated(
            values: list[jax.Array], zeros: list[jax.Array]
        ) -> tuple[list[jax.Array], tuple[list[Any], list[jax.Array], Any]]:
            self._zeros, self._watched = zeros, []
            with TapeScope(zip(self._variables, values, strict=True)) as scope:
                names, tapped = collecting(self._call)()
                assigned[:] = scope.assigned.values()
                new = scope.values(assigned)
            if watches_variables:
                missing = [v for v in scope.read.values() if _is_source(v)]
                self.read = [*self._variables, *missing]
            leaves, treedef = jax.tree.flatten(names)
            structure[:] = [treedef]
            floats = [leaf for leaf in leaves if _is_float(leaf)]
            indices[:] = [_index_in(floats, value) for value in self._watched]
            return floats, (leaves, new, tapped)

        values = [variable.value for variable in self._variables]
        zeros = [jnp.zeros(spec.shape, spec.dtype) for spec in self.watched]
        floats, self.pullback, (leaves, new, tapped) = jax.vjp(
            differentiated, values, zeros, has_aux=True
        )
        self.watched = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in self._watched]
        if len(self.read) > len(values) or len(self.watched) > len(zeros):
            return None
        self.outputs, self._indices = floats, indices
        for variable, value in zip(assigned, new, strict=True):
            variable.assign(value)
        tap_again(tapped)
        outputs = iter(floats)  # gradients are looked for by these very objects
        leaves = [next(outputs) if _is_float(leaf) else leaf for leaf in leaves]
        return jax.tree.unflatten(structure[0], leaves)

    def sources(
        self, by_variable: list[jax.Array], by_watched: list[jax.Array]
    ) -> Iterator[tuple[int, jax.Array]]:
        """Yields each source, by its address, with its gradient."""
        for variable, gradient in zip(self._variables, by_variable, strict=True):
            yield id(variable), gradient
        for index, gradient in zip(self._indices, by_watched, strict=True):
            if index is not None:
                yield id(self.outputs[index]), gradient

    def _call(self) -> list[Any]:
        return [defined(thunk) for thunk in self._function(*self._args)]


class TapeScope(VariableScope):
    """The scope of a block: `next(iterator)` in it draws from the enclosing scope."""

    is_of_tape = True

    @property
    def around(self) -> Any:
        """The scope that encloses the block of the tape."""
        return self._outer


def _is_float(leaf: Any) -> bool:
    is_array = isinstance(leaf, jax.Array | np.ndarray | np.generic)
    return is_array and jnp.issubdtype(leaf.dtype, jnp.floating)


def _is_source(variable: keras.Variable) -> bool:
    return variable.trainable and jnp.issubdtype(jnp.dtype(variable.dtype), jnp.floating)


def _index_in(leaves: list[jax.Array], value: jax.Array) -> int | None:
    return next((index for index, leaf in enumerate(leaves) if leaf is value), None)
