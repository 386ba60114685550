"""Methods and attributes of TensorFlow's and Keras 2's objects, and what to write for them.

These are found by their names alone, where the class of the object is not known, so only
distinctive ones are here.
"""

_SHAPE = "x.shape, which is a tuple"
_FLAGS = "jax.numpy.issubdtype(x.dtype, jax.numpy.{kind})"

_GRADIENTS = "tf.GradientTape, and optimizer.apply_gradients(zip(gradients, variables))"
METHODS = {
    "add_slot": "self.add_variable_from_reference(variable, name='m') in build()",
    "assign_from_checkpoint": "model.load_weights('name.weights.h5')",
    "compute_gradients": _GRADIENTS,
    "enqueue_many": "enqueue, for each value",
    "eval": "session.run(x), or numpy.asarray(x)",
    "experimental_ref": "id(x)",
    "get_slot": "optimizer.variables",
    "get_updates": "optimizer.apply_gradients",
    "interleave": "Dataset.from_generator, with a generator that reads the files in turns",
    "flat_map": "Dataset.from_generator, with a generator",
    "padded_batch": "batch, of rows that a generator pads: keras.utils.pad_sequences",
    "parallel_interleave": "Dataset.from_generator, with a generator that reads the files in turns",
    "snapshot": "cache",
    "window": "Dataset.from_generator, or keras.utils.timeseries_dataset_from_array",
    "group_by_window": "Dataset.from_generator, with a generator that sorts rows by length",
    "rejection_resample": "Dataset.from_generator, with a generator that draws rows",
    "scan": "Dataset.from_generator, with a generator that keeps the state",
    "sample_from_datasets": "Dataset.from_generator, with a generator that chooses",
    "choose_from_datasets": "Dataset.from_generator, with a generator that chooses",
    "list_files": "Dataset.from_tensor_slices(sorted(glob.glob(pattern)))",
    "minimize": "optimizer.apply_gradients(zip(gradients, variables)), or model.fit",
    "ref": "id(x)",
    "scatter_nd_update": "variable.assign(keras.ops.scatter_update(variable, indices, updates))",
    "scatter_update": "variable.assign(keras.ops.scatter_update(variable, indices, updates))",
    "sparse_read": "keras.ops.take(variable, indices, axis=0)",
}
_BY_NAME = ("add_slot", "get_slot", "get_updates", "experimental_ref", "scatter_nd_update",
            "sparse_read", "enqueue_many", "assign_from_checkpoint")  # fmt: skip
_RATE = "super().__init__(learning_rate=rate, name=name)"
_STEP = "update_step(self, gradient, variable, learning_rate)"
_VARIABLES = "optimizer.variables, each with numpy() and assign()"
METHODS |= {
    "get_weights": f"[v.numpy() for v in {_VARIABLES.partition(',')[0]}]",
    "set_weights": _VARIABLES,
    "_set_hyper": _RATE,
    "_get_hyper": "self.learning_rate",
    "_decayed_lr": "self.learning_rate",
    "_create_slots": "build(self, variables)",
    "reset_states": "reset_state()",
}
# Methods that subclasses define, which Keras 3 does not call.
OVERRIDES = {
    "_resource_apply_dense": _STEP,
    "_resource_apply_sparse": _STEP,
    "_apply_dense": _STEP,
    "_create_slots": "build(self, variables)",
    "get_updates": _STEP,
    "get_gradients": "keras.optimizers.LossScaleOptimizer, or a loss of your own",
}
# In a schedule of learning rates: what the program of an update would forget.
ASSIGNMENTS = ("assign", "assign_add", "assign_sub")
COUNTED = "the argument of __call__, which counts the updates: tf.cast(step, tf.float32)"
# Those that no other classes have.
OF_OPTIMIZERS = ("_resource_apply_dense", "_resource_apply_sparse", "_create_slots")
# Those that are looked for where the class of the object is not known.
DISTINCTIVE = {name: METHODS[name] for name in _BY_NAME}

OF_SHAPES = {
    "assert_has_rank": "assert len(x.shape) == rank",
    "assert_is_compatible_with": "assert x.shape == shape",
    "dims": "x.shape",
    "is_compatible_with": "x.shape == shape",
    "is_fully_defined": "None not in x.shape",
    "merge_with": _SHAPE,
    "ndims": "len(x.shape)",
    "rank": "len(x.shape)",
    "with_rank": _SHAPE,
    "with_rank_at_least": _SHAPE,
}

OF_DTYPES = {
    "as_datatype_enum": "numpy.dtype(x.dtype).name",
    "as_numpy_dtype": "numpy.dtype(x.dtype)",
    "base_dtype": "x.dtype",
    "is_bool": "x.dtype == bool",
    "is_complex": _FLAGS.format(kind="complexfloating"),
    "is_floating": _FLAGS.format(kind="floating"),
    "is_integer": _FLAGS.format(kind="integer"),
    "limits": "jax.numpy.finfo(x.dtype).min and .max",
    "real_dtype": "x.real.dtype",
    "size": "numpy.dtype(x.dtype).itemsize",
}

# By the class of the object, or its beginning.
ATTRIBUTES = {
    ("keras.optimizers.", "lr"): "optimizer.learning_rate",
    ("keras.optimizers.", "weights"): "optimizer.variables",
    ("keras.Model", "updates"): "model.non_trainable_variables",
    ("keras.Model", "state_updates"): "model.non_trainable_variables",
    ("keras.Sequential", "state_updates"): "model.non_trainable_variables",
}
