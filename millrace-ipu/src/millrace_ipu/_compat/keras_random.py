"""Private Keras: the generators of random numbers of layers whose calls have no seed.

Checked on keras 3.13.0, 3.15.1 and 3.16.0.dev.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras.src.backend.common.global_state import get_global_attribute
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from millrace.errors import ModelError
from millrace.extend import ScopedValue, current_scope, is_tracing, replace
from millrace_ipu._compat.patch_table import MODEL_OF_STEP

_model = ScopedValue[keras.Layer | None](None)  # that a step calls, which is in no name scope


def note_models_of_steps() -> None:
    """Notes the model of each step, for `generator_of_layer`."""

    def wrapper(original: Callable[..., object]) -> Callable[..., object]:
        def stateless_call(self: keras.Layer, *args: object, **kwargs: object) -> object:
            with _model.bound_to(self):
                return original(self, *args, **kwargs)

        return stateless_call

    replace(MODEL_OF_STEP, wrapper)


def generator_of_layer(seed: int | None) -> keras.random.SeedGenerator | None:
    """Returns the generator from which the running layer draws; None outside of layers.

    It belongs to the layer, as that of `keras.layers.Dropout` does: each step has other numbers.

    Args:
        seed: of its first number; generators of other seeds are others.

    Raises:
        ModelError: if this is the first draw of the layer, and in a step, whose variables are
            chosen.
    """
    stack: list[Any] = get_global_attribute("name_scope_stack") or []
    callers = [s.caller for s in stack if isinstance(s.caller, keras.Layer)]
    layer: Any = callers[-1] if callers else _model.get()
    if layer is None:
        return None
    name = f"draws_{seed}"
    for generator in layer._seed_generators:
        if generator.name == name:
            return generator
    if not in_symbolic_scope() and (is_tracing() or current_scope() is not None):
        raise ModelError(
            f"Layer {layer.name!r} draws random numbers without a generator, for the first time "
            "in a step of training, and they would be the same in all steps. Call the model on a "
            "batch before fit(), or make a keras.random.SeedGenerator in the layer's __init__() "
            "and pass it as seed."
        )
    layer._seed_generators.append(generator := keras.random.SeedGenerator(seed, name))
    return generator
