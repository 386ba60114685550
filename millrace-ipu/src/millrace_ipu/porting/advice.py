"""What to write for names of Keras 2 that have no replacement of the same form.

Each entry is code to write, or what to remove. A name gets the longest entry that it begins with
(`replacements.longest`); names that only moved are in keras2_names.py.
"""

_SYNCHRONIZED = "keras.layers.BatchNormalization(synchronized=True)"

KERAS = {
    "keras.backend.batch_dot": "keras.ops.einsum, or keras.layers.Dot(axes)",
    "keras.backend.bias_add": "x + bias",
    "keras.backend.concatenate": "keras.ops.concatenate(tensors, axis=-1)",
    "keras.backend.argmax": "keras.ops.argmax(x, axis=-1)",
    "keras.backend.argmin": "keras.ops.argmin(x, axis=-1)",
    "keras.backend.cumsum": "keras.ops.cumsum(x, axis=0)",
    "keras.backend.cumprod": "keras.ops.cumprod(x, axis=0)",
    "keras.backend.count_params": "math.prod(variable.shape)",
    "keras.backend.ctc_batch_cost": "keras.losses.CTC(), or keras.ops.ctc_loss",
    "keras.backend.ctc_decode": "keras.ops.ctc_decode",
    "keras.backend.batch_flatten": "keras.ops.reshape(x, (x.shape[0], -1))",
    "keras.backend.dropout": "keras.random.dropout",
    "keras.backend.expand_dims": "keras.ops.expand_dims(x, axis=-1)",
    "keras.backend.flatten": "keras.ops.reshape(x, (-1,))",
    "keras.backend.hard_sigmoid": "keras.ops.clip(0.2 * x + 0.5, 0, 1)",
    "keras.backend.int_shape": "x.shape",
    "keras.backend.l2_normalize": "keras.ops.normalize(x, axis=-1)",
    "keras.backend.manual_variable_initialization": "remove it: variables have values at once",
    "keras.backend.print_tensor": "jax.debug.print",
    "keras.backend.random_normal": "keras.random.normal",
    "keras.backend.random_uniform": "keras.random.uniform",
    "keras.backend.switch": "keras.ops.where, or keras.ops.cond",
    "keras.backend.truncated_normal": "keras.random.truncated_normal",
    "keras.backend.zeros": "keras.ops.zeros, or keras.Variable for a variable",
    "keras.backend.ones": "keras.ops.ones, or keras.Variable for a variable",
    "keras.layers.experimental.SyncBatchNormalization": _SYNCHRONIZED,
    "keras.models.model_from_yaml": "keras.models.model_from_json",
    "keras.utils.data_utils": "keras.utils.get_file, keras.utils.PyDataset",
    "keras.utils.conv_utils": "the sizes themselves: keras.utils has none of its functions",
    "keras.utils.layer_utils": "model.summary(), keras.utils.plot_model",
}
