"""`keras.callbacks.TensorBoard` without TensorFlow: Keras's own, which writes with `tf.summary`."""

import functools
import os
from typing import Any

import keras

from millrace.extend import patches_in, put_in
from millrace_ipu._compat.patch_table import TENSOR_BOARD
from millrace_ipu.tensorflow import summary
from millrace_ipu.tensorflow.dispatch import is_installed


class TensorBoard(keras.callbacks.TensorBoard):
    """Keras's callback; the structure of the model is written into an event file of its own."""

    summary = summary  # type: ignore[assignment, override]

    def set_model(self, model: Any) -> None:
        """Takes the model, and writes its structure, for which Keras would ask TensorFlow."""
        os.makedirs(self.log_dir, exist_ok=True)
        is_wanted, self.write_graph = self.write_graph, False
        super().set_model(model)
        self.write_graph = is_wanted
        if is_wanted and (isinstance(model, keras.Sequential) or hasattr(model, "operations")):
            with summary.SummaryWriter(os.path.join(self.log_dir, "train")).as_default():
                summary.keras_model(model.to_json())


def let_tensor_board_be_written() -> None:
    """Puts this callback in place of Keras's own, which needs TensorFlow, where there is none."""
    if is_installed() or TENSOR_BOARD in patches_in():
        return
    module: Any = keras.callbacks
    put_in(TENSOR_BOARD, functools.partial(setattr, module, "TensorBoard", module.TensorBoard))
    module.TensorBoard = TensorBoard
