"""Private Keras: building a model as fit does. Checked on keras 3.13.0, 3.14.0 and 3.15.1."""

from typing import Any

import keras

from millrace._compat.needed import check_names

check_names({keras.Model: ("_symbolic_build", "_flatten_layers")})


def build_for(model: Any, batch: Any) -> None:
    """Makes the variables that fit would make: of the model, its metrics and its optimizer.

    Args:
        model: a compiled model.
        batch: x, y and sample weights, or their specs; nothing is computed.
    """
    model._symbolic_build(data_batch=batch)


def layer_names(model: Any) -> set[str]:
    """Returns the names of all layers in a model, inner ones included."""
    return {layer.name for layer in model._flatten_layers(include_self=False)}
