"""Recurrent layers under the names of their fused cells on the IPU.

PopnnLSTM   -> keras.layers.LSTM
PopnnGRU    -> keras.layers.GRU(reset_after=False)

dropout_seed                              -> seed
time_major=True                           inputs and sequences are [time, rows, features]
partials_dtype, options, options_bwd      without effect, with one warning: XLA plans the cell
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import jax
import keras

from millrace_ipu.ipu.keras.layers.stock import InputShape, Seed, one_number
from millrace_ipu.tensorflow.no_operation import warn_no_effect

_PLANS = (
    "partials_dtype",
    "options",
    "options_bwd",
    "available_memory_proportion_fwd",
    "available_memory_proportion_bwd",
)


def _stock_options(kwargs: Mapping[str, object]) -> dict[str, Any]:
    """Returns the arguments of the Keras layer, and warns about those without effect."""
    options = dict(kwargs)
    for name in _PLANS:
        if options.pop(name, None) is not None:
            warn_no_effect(name, "XLA plans the cell; choose its precision by the layer's dtype.")
    seed = options.pop("dropout_seed", None)
    if seed is not None:
        options["seed"] = one_number(cast(Seed, seed))
    # cuDNN's cell is one operation: recomputation and pipelines could not see inside it.
    return {"use_cudnn": False, **options}


class _TimeMajor(keras.layers.RNN):
    """A recurrent layer whose first axis may be time."""

    def __init__(self, units: int, *args: Any, time_major: bool = False, **kwargs: object):
        super().__init__(units, *args, **_stock_options(kwargs))
        self.time_major = time_major

    def build(
        self, sequences_shape: InputShape, initial_state_shape: Sequence[InputShape] | None = None
    ) -> None:
        """Makes the weights, which do not depend on the order of the axes."""
        super().build(self._rows_first(sequences_shape), initial_state_shape)

    def compute_output_shape(
        self, sequences_shape: InputShape, initial_state_shape: Sequence[InputShape] | None = None
    ) -> Any:
        """Returns the shape of the output, and those of the states."""
        return super().compute_output_shape(self._rows_first(sequences_shape), initial_state_shape)

    def call(
        self,
        sequences: jax.Array,
        initial_state: Sequence[jax.Array] | None = None,
        mask: jax.Array | None = None,
        training: bool = False,
    ) -> Any:
        """Runs the cell over time."""
        if self.time_major:
            sequences = cast(jax.Array, keras.ops.swapaxes(sequences, 0, 1))
        result: Any = super().call(sequences, initial_state, mask, training)
        if not (self.time_major and self.return_sequences):
            return result
        if not self.return_state:
            return keras.ops.swapaxes(result, 0, 1)
        return [keras.ops.swapaxes(result[0], 0, 1), *result[1:]]

    def get_config(self) -> dict[str, Any]:
        """Returns the config of the Keras layer, with the order of the axes."""
        return {**super().get_config(), "time_major": self.time_major}

    def _rows_first(self, shape: InputShape) -> InputShape:
        return (shape[1], shape[0], *shape[2:]) if self.time_major else shape


@keras.saving.register_keras_serializable(package="millrace_ipu.ipu")
class PopnnLSTM(_TimeMajor, keras.layers.LSTM):
    """`keras.layers.LSTM`, under the name of the IPU's fused layer."""

    # Python 3.11.2 shows the signature of `__new__`, unless the class itself has an `__init__`.
    def __init__(self, units: int, *args: object, time_major: bool = False, **kwargs: object):
        super().__init__(units, *args, time_major=time_major, **kwargs)


@keras.saving.register_keras_serializable(package="millrace_ipu.ipu")
class PopnnGRU(_TimeMajor, keras.layers.GRU):
    """`keras.layers.GRU`, whose reset gate acts before the product with the state."""

    def __init__(self, units: int, *args: object, reset_after: bool = False, **kwargs: Any):
        super().__init__(units, *args, reset_after=reset_after, **kwargs)
