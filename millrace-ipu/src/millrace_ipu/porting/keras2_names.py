"""Names of Keras 2, and their names in Keras 3.

new_name("keras.layers.experimental.preprocessing.Rescaling")   -> "keras.layers.Rescaling"
new_name("keras.layers.CuDNNLSTM")                              -> "keras.layers.LSTM"
new_name("keras.backend.mean")                                  -> "keras.ops.mean"
advice("keras.layers.LocallyConnected1D")                       -> what to write instead

`millrace run` serves all names of `MODULES`, `NAMES`, `VALUES` and `BETTER`; `millrace port` writes
the new ones. Names of `GONE` raise an error with the advice.
"""

from millrace_ipu.tensorflow.unsupported import longest

# Modules, by the module that has their names now; those of their submodules, too.
_MOVED = {
    "keras": "engine.training engine.functional engine.sequential",
    "keras.layers": (
        "engine engine.base_layer engine.input_layer engine.input_spec engine.topology "
        "layers.advanced_activations layers.attention layers.convolutional layers.core "
        "layers.embeddings layers.experimental layers.experimental.preprocessing layers.merge "
        "layers.merging layers.noise layers.normalization layers.pooling layers.recurrent "
        "layers.recurrent_v2 layers.regularization layers.reshaping layers.rnn layers.wrappers"
    ),
    "keras.initializers": (
        "initializers.initializers initializers.initializers_v1 initializers.initializers_v2"
    ),
    "keras.callbacks": "callbacks.experimental",
    "keras.losses": "utils.losses_utils losses.losses_utils",
    "keras.mixed_precision": "mixed_precision.experimental mixed_precision.policy",
    "keras.models": "saving.save",
    "keras.optimizers": (
        "mixed_precision.loss_scale_optimizer optimizers.experimental optimizers.legacy "
        "optimizers.adam_v2 optimizers.gradient_descent_v2 optimizers.rmsprop_v2 "
        "optimizers.optimizer_v2 optimizers.optimizer_experimental optimizer_v1 optimizer_v2"
    ),
    "keras.optimizers.schedules": (
        "experimental optimizers.learning_rate_schedule optimizer_v2.learning_rate_schedule"
    ),
    "keras.utils": (
        "utils.all_utils utils.data_utils utils.generic_utils utils.layer_utils utils.np_utils "
        "utils.vis_utils utils.training_utils"
    ),
}
MODULES = {f"keras.{old}": new for new, olds in _MOVED.items() for old in olds.split()}
# One module for each optimizer; imports find the modules of other old modules by themselves.
_OPTIMIZERS = "adadelta adagrad adam adamax ftrl gradient_descent nadam optimizer_v2 rmsprop"
for _old in ("keras.optimizer_v2", "keras.optimizers.optimizer_v2"):
    MODULES.update({f"{_old}.{name}": "keras.optimizers" for name in _OPTIMIZERS.split()})

_LOSSES = {
    "MSE": "mean_squared_error",
    "MAE": "mean_absolute_error",
    "MAPE": "mean_absolute_percentage_error",
    "MSLE": "mean_squared_logarithmic_error",
    "KLD": "kl_divergence",
    "kullback_leibler_divergence": "kl_divergence",
}
_INITIALIZERS = {
    "normal": "RandomNormal",
    "uniform": "RandomUniform",
    "random_normal_initializer": "RandomNormal",
    "random_uniform_initializer": "RandomUniform",
}

NAMES = {
    "keras.layers.CuDNNLSTM": "keras.layers.LSTM",
    "keras.layers.CuDNNGRU": "keras.layers.GRU",
    "keras.layers.SyncBatchNormalization": "keras.layers.BatchNormalization",
    "keras.layers.BatchNormalizationV1": "keras.layers.BatchNormalization",
    "keras.layers.BatchNormalizationV2": "keras.layers.BatchNormalization",
    "keras.layers.PreprocessingLayer": "keras.layers.Layer",
    "keras.optimizers.optimizer_v2.OptimizerV2": "keras.optimizers.Optimizer",
    "keras.optimizer_v2.optimizer_v2.OptimizerV2": "keras.optimizers.Optimizer",
    "keras.optimizers.OptimizerV2": "keras.optimizers.Optimizer",
    "keras.experimental.SequenceFeatures": "keras.utils.FeatureSpace",
    "keras.mixed_precision.experimental.set_policy": "keras.mixed_precision.set_global_policy",
    "keras.mixed_precision.set_policy": "keras.mixed_precision.set_global_policy",
    "keras.constraints.maxnorm": "keras.constraints.MaxNorm",
    "keras.constraints.nonneg": "keras.constraints.NonNeg",
    "keras.constraints.unitnorm": "keras.constraints.UnitNorm",
    "keras.metrics.acc": "keras.metrics.binary_accuracy",
    **{f"keras.initializers.{old}": f"keras.initializers.{n}" for old, n in _INITIALIZERS.items()},
    **{f"keras.losses.{old}": f"keras.losses.{new}" for old, new in _LOSSES.items()},
    **{f"keras.losses.{old.lower()}": f"keras.losses.{new}" for old, new in _LOSSES.items()},
    **{f"keras.metrics.{old}": f"keras.metrics.{new}" for old, new in _LOSSES.items()},
    **{f"keras.metrics.{old.lower()}": f"keras.metrics.{new}" for old, new in _LOSSES.items()},
}  # fmt: skip

# Names that stand for a value: the source text of that value.
_OF_REDUCTION = {"AUTO": "'sum_over_batch_size'", "SUM_OVER_BATCH_SIZE": "'sum_over_batch_size'"}
_OF_REDUCTION |= {"SUM": "'sum'", "NONE": "'none'"}
VALUES = {
    f"keras.{owner}.{name}": value
    for owner in (
        "losses.Reduction", "losses.losses_utils.ReductionV2", "utils.losses_utils.ReductionV2"
    )
    for name, value in _OF_REDUCTION.items()
}  # fmt: skip

# Functions of keras.backend that keras.ops has with the same arguments, some by another name.
_SAME = (
    "abs all any arange cast clip cos elu equal exp eye greater greater_equal less less_equal log "
    "logsumexp max maximum mean min minimum not_equal ones_like prod relu reshape shape sigmoid "
    "sign sin softmax softplus softsign sqrt square squeeze stack std stop_gradient sum tanh tile "
    "transpose var zeros_like"
)
NAMES |= {f"keras.backend.{name}": f"keras.ops.{name}" for name in _SAME.split()}
NAMES |= {
    "keras.backend.bias_add": "keras.ops.add",
    "keras.backend.constant": "keras.ops.convert_to_tensor",
    "keras.backend.gather": "keras.ops.take",
    "keras.backend.map_fn": "keras.ops.map",
    "keras.backend.name_scope": "keras.name_scope",
    "keras.backend.ndim": "keras.ops.ndim",
    "keras.backend.permute_dimensions": "keras.ops.transpose",
    "keras.backend.pow": "keras.ops.power",
    "keras.backend.reverse": "keras.ops.flip",
    "keras.backend.variable": "keras.Variable",
}
# Others, whose arguments or defaults differ.
_BACKEND = {
    "argmax": "keras.ops.argmax(x, axis=-1)",
    "argmin": "keras.ops.argmin(x, axis=-1)",
    "batch_dot": "keras.ops.einsum, or keras.layers.Dot(axes)",
    "batch_flatten": "keras.ops.reshape(x, (x.shape[0], -1))",
    "batch_get_value": "variable.numpy()",
    "batch_normalization": "keras.ops.batch_normalization",
    "batch_set_value": "variable.assign(value)",
    "binary_crossentropy": "keras.ops.binary_crossentropy",
    "cast_to_floatx": "keras.ops.cast",
    "categorical_crossentropy": "keras.ops.categorical_crossentropy",
    "concatenate": "keras.ops.concatenate(tensors, axis=-1)",
    "conv1d": "keras.ops.conv",
    "conv2d": "keras.ops.conv",
    "conv3d": "keras.ops.conv",
    "count_params": "math.prod(variable.shape)",
    "ctc_batch_cost": "keras.losses.CTC(), or keras.ops.ctc_loss",
    "cumprod": "keras.ops.cumprod(x, axis=0)",
    "cumsum": "keras.ops.cumsum(x, axis=0)",
    "dot": "keras.ops.dot",
    "dropout": "keras.random.dropout",
    "dtype": "x.dtype",
    "eval": "numpy.asarray",
    "expand_dims": "keras.ops.expand_dims(x, axis=-1)",
    "flatten": "keras.ops.reshape(x, (-1,))",
    "get_value": "variable.numpy()",
    "hard_sigmoid": "keras.ops.clip(0.2 * x + 0.5, 0, 1)",
    "in_top_k": "keras.ops.in_top_k",
    "int_shape": "x.shape",
    "l2_normalize": "keras.ops.normalize(x, axis=-1)",
    "one_hot": "keras.ops.one_hot",
    "ones": "keras.ops.ones, or keras.Variable for a variable",
    "random_normal": "keras.random.normal",
    "random_uniform": "keras.random.uniform",
    "repeat": "keras.ops.repeat",
    "resize_images": "keras.ops.image.resize",
    "round": "keras.ops.round",
    "set_value": "variable.assign(value)",
    "sparse_categorical_crossentropy": "keras.ops.sparse_categorical_crossentropy",
    "switch": "keras.ops.where, or keras.ops.cond",
    "truncated_normal": "keras.random.truncated_normal",
    "update": "variable.assign(value)",
    "update_add": "variable.assign_add(value)",
    "update_sub": "variable.assign_sub(value)",
    "zeros": "keras.ops.zeros, or keras.Variable for a variable",
}

_TRAINING = "the argument `training` of call()"
_JAX = "nothing: JAX has no sessions"
_FILES = "keras.utils.PyDataset, or arrays"
GONE = {
    "keras.backend.learning_phase": _TRAINING,
    "keras.backend.set_learning_phase": _TRAINING,
    "keras.backend.learning_phase_scope": _TRAINING,
    "keras.backend.in_train_phase": _TRAINING,
    "keras.backend.in_test_phase": _TRAINING,
    "keras.backend.ctc_decode": "keras.ops.ctc_decode",
    "keras.backend.manual_variable_initialization": "remove it: variables have values at once",
    "keras.backend.print_tensor": "jax.debug.print",
    "keras.backend.get_session": _JAX,
    "keras.backend.set_session": _JAX,
    "keras.backend.function": "keras.Model(inputs, outputs)",
    "keras.backend.gradients": "millrace.value_and_grad",
    "keras.backend.placeholder": "keras.Input",
    "keras.backend.rnn": "keras.layers.RNN",
    "keras.backend.foldl": "keras.ops.scan",
    "keras.backend.foldr": "keras.ops.scan",
    "keras.backend.moving_average_update": "variable.assign(...) in call()",
    "keras.layers.LocallyConnected1D": "keras.ops.einsum in a layer of your own",
    "keras.layers.LocallyConnected2D": "keras.ops.einsum in a layer of your own",
    "keras.layers.DenseFeatures": "keras.utils.FeatureSpace",
    "keras.layers.experimental.RandomFourierFeatures": "keras.ops.cos in a layer of your own",
    "keras.estimator": "model.fit of a Keras model in a strategy's scope",
    "keras.experimental.LinearCosineDecay": "keras.optimizers.schedules.CosineDecay",
    "keras.experimental.NoisyLinearCosineDecay": "keras.optimizers.schedules.CosineDecay",
    "keras.experimental.LinearModel": "keras.Sequential with one Dense layer",
    "keras.experimental.WideDeepModel": "a functional keras.Model",
    "keras.experimental.export_saved_model": "model.save('model.keras')",
    "keras.experimental.load_from_saved_model": "keras.models.load_model('model.keras')",
    "keras.wrappers.scikit_learn": "keras.wrappers.SKLearnClassifier or SKLearnRegressor",
    "keras.wrappers.scikit_learn.KerasClassifier": "keras.wrappers.SKLearnClassifier",
    "keras.wrappers.scikit_learn.KerasRegressor": "keras.wrappers.SKLearnRegressor",
    "keras.utils.multi_gpu_model": "millrace.Strategy(devices=n), with replicas",
    "keras.utils.OrderedEnqueuer": _FILES,
    "keras.utils.GeneratorEnqueuer": _FILES,
    "keras.utils.SequenceEnqueuer": _FILES,
    "keras.utils.HDF5Matrix": "arrays that h5py has read",
    "keras.models.model_from_yaml": "keras.models.model_from_json",
    "keras.utils.conv_utils": "the sizes themselves: keras.utils has none of its functions",
    "keras.premade": "a functional keras.Model",
}

# Names that `millrace run` serves, and for which there is something better, not under another name.
BETTER = {
    **{f"keras.backend.{name}": text for name, text in _BACKEND.items()},
    "keras.applications.resnet.ResNet": "a functional keras.Model, such as ResNet50",
    "keras.layers.ThresholdedReLU": "keras.layers.ReLU(threshold=theta)",
    "keras.preprocessing.image.ImageDataGenerator": "layers for augmentation, such as "
    f"keras.layers.RandomFlip, and {_FILES}",
    "keras.preprocessing.sequence.TimeseriesGenerator": (
        "keras.utils.timeseries_dataset_from_array, or keras.utils.PyDataset"
    ),
    "keras.preprocessing.text": "keras.layers.TextVectorization",
}


def module_now(name: str) -> str | None:
    """Returns the module with the names of one that is gone; None if none is listed.

    Args:
        name: such as `keras.layers.core.dense`, which is in an old module.
    """
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return MODULES.get(name)


def new_name(name: str) -> str | None:
    """Returns the name of Keras 3 for one of Keras 2; None if it has not changed, or is gone.

    Args:
        name: such as `keras.layers.core.Dense`.
    """
    if name in GONE or name in BETTER:
        return None
    if name in NAMES or name in MODULES:
        return NAMES.get(name) or MODULES[name]
    module, _, last = name.rpartition(".")
    now = module_now(module)
    if now is None:
        return None
    new = f"{now}.{last}"
    return None if new in GONE else NAMES.get(new, new)


def advice(name: str) -> str | None:
    """Returns what to write for a name that Keras 3 does not have; None for other names.

    Args:
        name: such as `keras.layers.LocallyConnected1D`.
    """
    return longest(GONE, name) or longest(BETTER, name)
