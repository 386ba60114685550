"""Names of Keras 2, and their names in Keras 3.

new_name("keras.layers.experimental.preprocessing.Rescaling")   -> "keras.layers.Rescaling"
new_name("keras.layers.CuDNNLSTM")                              -> "keras.layers.LSTM"
new_name("keras.backend.mean")                                  -> "keras.ops.mean"
advice("keras.layers.LocallyConnected1D")                       -> what to write instead

`millrace run` serves all names of `MODULES`, `NAMES`, `VALUES`, `BACKEND` and `BETTER`; `millrace
port` writes the new ones. Names of `GONE` raise an error with the advice.
"""

# Modules whose names are in another module now; those of submodules, too.
MODULES = {
    "keras.engine": "keras.layers",
    "keras.engine.base_layer": "keras.layers",
    "keras.engine.input_layer": "keras.layers",
    "keras.engine.input_spec": "keras.layers",
    "keras.engine.training": "keras",
    "keras.engine.functional": "keras",
    "keras.engine.sequential": "keras",
    "keras.engine.topology": "keras.layers",
    "keras.initializers.initializers": "keras.initializers",
    "keras.initializers.initializers_v1": "keras.initializers",
    "keras.initializers.initializers_v2": "keras.initializers",
    "keras.layers.advanced_activations": "keras.layers",
    "keras.layers.attention": "keras.layers",
    "keras.layers.convolutional": "keras.layers",
    "keras.layers.core": "keras.layers",
    "keras.layers.embeddings": "keras.layers",
    "keras.layers.experimental": "keras.layers",
    "keras.layers.experimental.preprocessing": "keras.layers",
    "keras.layers.merge": "keras.layers",
    "keras.layers.merging": "keras.layers",
    "keras.layers.noise": "keras.layers",
    "keras.layers.normalization": "keras.layers",
    "keras.layers.pooling": "keras.layers",
    "keras.layers.recurrent": "keras.layers",
    "keras.layers.recurrent_v2": "keras.layers",
    "keras.layers.regularization": "keras.layers",
    "keras.layers.reshaping": "keras.layers",
    "keras.layers.rnn": "keras.layers",
    "keras.layers.wrappers": "keras.layers",
    "keras.callbacks.experimental": "keras.callbacks",
    "keras.experimental": "keras.optimizers.schedules",
    "keras.mixed_precision.experimental": "keras.mixed_precision",
    "keras.mixed_precision.policy": "keras.mixed_precision",
    "keras.mixed_precision.loss_scale_optimizer": "keras.optimizers",
    "keras.optimizers.experimental": "keras.optimizers",
    "keras.optimizers.legacy": "keras.optimizers",
    "keras.optimizers.adam_v2": "keras.optimizers",
    "keras.optimizers.gradient_descent_v2": "keras.optimizers",
    "keras.optimizers.rmsprop_v2": "keras.optimizers",
    "keras.optimizers.optimizer_v2": "keras.optimizers",
    "keras.optimizers.optimizer_experimental": "keras.optimizers",
    "keras.optimizers.learning_rate_schedule": "keras.optimizers.schedules",
    "keras.optimizer_v2": "keras.optimizers",
    "keras.optimizer_v2.learning_rate_schedule": "keras.optimizers.schedules",
    "keras.optimizer_v1": "keras.optimizers",
    "keras.saving.save": "keras.models",
    "keras.utils.all_utils": "keras.utils",
    "keras.utils.data_utils": "keras.utils",
    "keras.utils.generic_utils": "keras.utils",
    "keras.utils.layer_utils": "keras.utils",
    "keras.utils.losses_utils": "keras.losses",
    "keras.losses.losses_utils": "keras.losses",
    "keras.utils.np_utils": "keras.utils",
    "keras.utils.vis_utils": "keras.utils",
    "keras.utils.training_utils": "keras.utils",
}
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

# Functions of keras.backend, and their names in keras.ops.
_SAME = (
    "abs all any arange argmax argmin cast cos cumprod cumsum dot elu equal exp expand_dims eye "
    "greater greater_equal less less_equal log logsumexp max maximum mean min minimum not_equal "
    "ones ones_like prod relu repeat reshape round sigmoid sign sin softmax softplus softsign sqrt "
    "square squeeze stack std stop_gradient sum tanh tile transpose var zeros zeros_like clip "
    "one_hot concatenate batch_normalization hard_sigmoid binary_crossentropy "
    "categorical_crossentropy sparse_categorical_crossentropy in_top_k"
)
BACKEND = {
    **{name: f"keras.ops.{name}" for name in _SAME.split()},
    "batch_dot": "keras.ops.einsum",
    "batch_flatten": "keras.ops.reshape",
    "batch_get_value": "variable.numpy()",
    "batch_set_value": "variable.assign(value)",
    "bias_add": "keras.ops.add",
    "cast_to_floatx": "keras.ops.cast",
    "constant": "keras.ops.convert_to_tensor",
    "count_params": "keras.ops.size",
    "ctc_batch_cost": "keras.ops.ctc_loss",
    "conv1d": "keras.ops.conv",
    "conv2d": "keras.ops.conv",
    "conv3d": "keras.ops.conv",
    "dropout": "keras.random.dropout",
    "dtype": "x.dtype",
    "eval": "numpy.asarray",
    "flatten": "keras.ops.ravel",
    "gather": "keras.ops.take",
    "get_value": "variable.numpy()",
    "int_shape": "x.shape",
    "l2_normalize": "keras.ops.normalize",
    "map_fn": "keras.ops.map",
    "name_scope": "keras.name_scope",
    "ndim": "keras.ops.ndim",
    "permute_dimensions": "keras.ops.transpose",
    "pow": "keras.ops.power",
    "random_normal": "keras.random.normal",
    "random_uniform": "keras.random.uniform",
    "truncated_normal": "keras.random.truncated_normal",
    "resize_images": "keras.ops.image.resize",
    "reverse": "keras.ops.flip",
    "set_value": "variable.assign(value)",
    "shape": "keras.ops.shape",
    "switch": "keras.ops.where",
    "update": "variable.assign(value)",
    "update_add": "variable.assign_add(value)",
    "update_sub": "variable.assign_sub(value)",
    "variable": "keras.Variable",
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
    "keras.premade": "a functional keras.Model",
}

# Names that `millrace run` serves, and for which there is something better, not under another name.
BETTER = {
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
    if name in GONE:
        return None
    if name in NAMES:
        return NAMES[name]
    module, _, last = name.rpartition(".")
    if module == "keras.backend":
        return BACKEND.get(last)
    if name in MODULES:
        return MODULES[name]
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
    while name:
        if name in GONE or name in BETTER:
            return GONE.get(name) or BETTER[name]
        name = name.rpartition(".")[0]
    return None
