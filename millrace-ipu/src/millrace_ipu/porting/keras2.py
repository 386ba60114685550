"""The table of habits: what programs for Keras 2 and TensorFlow write, and what Keras 3 takes.

keras.optimizers.SGD(lr=0.1)                 learning_rate=0.1      an argument with another name
model.fit(x, y, workers=4)                   model.fit(x, y)        an argument that is gone
keras.Input(shape=(80))                      shape=(80,)            a number for a shape
model.save_weights("out/w")                  "out/w.weights.h5"     a file name
optimizer.lr                                 .learning_rate         an attribute, or a method

`millrace run` mends the habits that say so, with the meaning that they had; `millrace port` reports
all of them, and rewrites those that have an `edit`. Names of modules are in keras2_names.py.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from millrace_ipu.tensorflow.replacements import SERVING


class Edit(enum.Enum):
    """How the text of a program is rewritten; `Habit.to` is what the edit needs."""

    RENAME = "the argument, the method or the attribute gets the name `to`"
    REMOVE = "the argument is left out"
    TUPLE = "the number becomes a tuple: `80` -> `(80,)`"
    ELEMENT = "the list becomes its only element: `[3]` -> `3`"
    SUFFIX = "the file name, if it is a literal, ends with `to`"
    ARGUMENT = "the argument becomes the source text `to`"
    KEYWORDS = "the positional arguments get the names in `to`"
    EXPRESSION = "the call becomes `to`, in which {} stands for the object"


@dataclass(frozen=True, slots=True)
class Habit:
    """One thing that programs write.

    Attributes:
        of: what it concerns: functions by their canonical names, such as `keras.Input`; a name that
            ends with a dot stands for all members of a module, one that begins with a dot for a
            method or an attribute of any object. `optimizer.lr` is one of what is called so.
        argument: the keyword argument; an empty string for the call or the attribute itself.
        instead: what to write, in the words of findings and of errors.
        edit: how the text is rewritten; None if a person must do it.
        to: what the edit needs.
        mended: whether `millrace run` gives it the meaning that it had.
        value: the source text of the value that is meant, such as `'auto'`; empty for any. With
            `Edit.SUFFIX` the endings that a file name may have.
        position: index of the positional argument that may stand for `argument`.
    """

    of: tuple[str, ...]
    argument: str
    instead: str
    edit: Edit | None = None
    to: str = ""
    mended: bool = True
    value: str = ""
    position: int | None = None

    def concerns(self, name: str) -> bool:
        """Whether it is about a canonical name, `.method` or `receiver.method`."""
        return any(name.startswith(o) if o[-1] == "." else name == o for o in self.of)


def habits_of(name: str) -> Iterator[Habit]:
    """Yields the habits about a canonical name, `.method` or `receiver.method`."""
    return (habit for habit in HABITS if habit.concerns(name))


# Parts of the names that programs give to their objects, by the receivers in `Habit.of`.
RECEIVERS = {
    "get_shape": ("get_shape",),
    "optimizer": ("optimizer",),
    "model": ("model", "net", "encoder", "decoder", "bert"),
    "dataset": ("data",),
    "layer": ("layer",),
    "shape": ("shape",),
    "dtype": ("dtype",),
}

_LOOPS = (".fit", ".evaluate", ".predict", ".fit_generator", ".evaluate_generator",
          ".predict_generator")  # fmt: skip
_OPTIMIZERS = ("keras.optimizers.",)
_LAYERS = ("keras.layers.",)
_NORM = ("keras.layers.BatchNormalization",)
_RECURRENT = ("keras.layers.LSTM", "keras.layers.GRU", "keras.layers.SimpleRNN", "keras.layers.RNN")
_CONVOLUTIONS = tuple(f"keras.layers.Conv{kind}" for kind in ("1D", "2D", "3D", "2DTranspose"))
_POOLINGS = tuple(f"keras.layers.{kind}Pooling{n}D" for kind in ("Max", "Average") for n in "123")
_INPUTS = ("keras.Input", "keras.layers.Input", "keras.layers.InputLayer")
_MODELS = ("keras.Model", "keras.models.Model")
_WEIGHTS = (".add_weight", ".add_variable")
_CHECKPOINT = ("keras.callbacks.ModelCheckpoint",)
_SAVES = ("model.save", "keras.models.save_model", "keras.models.load_model")
_WITHOUT = "nothing: leave it out"
_WORKERS = "leave it out, or an argument of keras.utils.PyDataset"
_RESET = "model.reset_metrics() before the call"
_GENERATOR = "Dataset.from_generator, with a generator "
_COUNT = "gradient_accumulation_count"
_STEPS = "gradient_accumulation_steps_per_replica"
_APPLY = "optimizer.apply_gradients(zip(gradients, variables)), or model.fit"
_VARIABLES = "optimizer.variables, each with numpy() and assign()"


def _renamed(of: tuple[str, ...], argument: str, new: str, mended: bool = True) -> Habit:
    return Habit(of, argument, f"{new}=", Edit.RENAME, new, mended)


def _gone(of: tuple[str, ...], argument: str, instead: str = _WITHOUT) -> Habit:
    return Habit(of, argument, instead, Edit.REMOVE)


def _by_hand(of: tuple[str, ...], argument: str, instead: str, mended: bool = False) -> Habit:
    return Habit(of, argument, instead, mended=mended)


def _tuple(of: tuple[str, ...], argument: str, position: int | None = None) -> Habit:
    return Habit(of, argument, f"a tuple: {argument}=(n,)", Edit.TUPLE, position=position)


def _suffix(of: tuple[str, ...], suffix: str, others: str, more: str = "") -> Habit:
    instead = f"a file name that ends with {suffix}{more}"
    endings = f"{suffix} {others}"
    return Habit(of, "filepath", instead, Edit.SUFFIX, suffix, value=endings, position=0)


def _member(of: str, instead: str, mended: bool = False, to: str = "") -> Habit:
    """Returns the habit of a method or an attribute; `to` is its new name, or an expression."""
    edit = None if not to else Edit.RENAME if to.isidentifier() else Edit.EXPRESSION
    return Habit((of,), "", instead, edit, to, mended)


HABITS: tuple[Habit, ...] = (
    # Optimizers.
    _renamed(_OPTIMIZERS, "lr", "learning_rate"),
    _by_hand(
        _OPTIMIZERS,
        "decay",
        "learning_rate=keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay)",
        mended=True,
    ),
    _gone(_OPTIMIZERS, "schedule_decay"),
    _gone(_OPTIMIZERS, "jit_compile"),
    _by_hand(
        _OPTIMIZERS,
        "gradient_transformers",
        "an optimizer of your own, whose apply() transforms the gradients, or "
        "ipu.optimizers.MapGradientOptimizer",
        mended=True,
    ),
    _by_hand(
        _OPTIMIZERS, "gradient_aggregator", "nothing: replicas add their gradients themselves"
    ),
    Habit(
        ("keras.optimizers.LossScaleOptimizer", "keras.mixed_precision.LossScaleOptimizer"),
        "dynamic",
        "optimizer.loss_scale_factor = scale, without the wrapper",
        mended=False,
        value="False",
    ),
    Habit(_OPTIMIZERS, "epsilon", _WITHOUT, Edit.REMOVE, value="None"),
    _member("optimizer.lr", "optimizer.learning_rate", mended=True, to="learning_rate"),
    _member("optimizer.weights", "optimizer.variables", mended=True, to="variables"),
    _member("optimizer.get_weights", "[v.numpy() for v in optimizer.variables]", mended=True),
    _member("optimizer.set_weights", _VARIABLES),
    _member("optimizer.minimize", _APPLY),
    _member("optimizer.compute_gradients", _APPLY),
    _member(".get_gradients", "millrace.value_and_grad"),
    _member(".add_slot", "self.add_variable_from_reference(variable, name='m') in build()"),
    _member(".get_slot", "optimizer.variables"),
    _member(".get_updates", "optimizer.apply_gradients"),
    # Shapes.
    _tuple(_INPUTS, "shape", position=0),
    _tuple(("keras.layers.InputLayer",), "input_shape", position=0),
    _tuple(_LAYERS, "input_shape"),
    _by_hand(_INPUTS, "ragged", "rows padded to one length, and a mask"),
    _by_hand(
        _LAYERS, "batch_input_shape", "keras.Input(batch_shape=...) as the first layer", mended=True
    ),
    _gone(("keras.layers.Embedding",), "input_length"),
    _tuple(("keras.layers.Reshape",), "target_shape", position=0),
    _tuple(_WEIGHTS, "shape"),
    # Layers.
    _by_hand(_RECURRENT, "time_major", "inputs of shape (batch, time, features)"),
    _gone(_NORM, "fused"),
    _by_hand(_NORM, "virtual_batch_size", "a smaller batch, with gradient accumulation"),
    Habit(_NORM, "axis", "the number in the list: axis=3", Edit.ELEMENT),
    _gone(_LAYERS, "dynamic"),
    _renamed(("keras.layers.LeakyReLU",), "alpha", "negative_slope"),
    _renamed(_CONVOLUTIONS + _POOLINGS, "border_mode", "padding"),
    _renamed(_CONVOLUTIONS, "subsample", "strides"),
    _renamed(_CONVOLUTIONS, "nb_filter", "filters"),
    _renamed(("keras.layers.Dense",), "output_dim", "units"),
    _renamed(("keras.layers.Dropout",), "p", "rate"),
    Habit(
        _WEIGHTS,
        "",
        "add_weight(shape=..., name='w'): the name as a keyword",
        Edit.KEYWORDS,
        "name shape dtype initializer regularizer trainable constraint",
    ),
    _member(".add_variable", "add_weight", mended=True, to="add_weight"),
    *(
        _gone(_WEIGHTS, name)
        for name in ("use_resource", "synchronization", "getter", "collections", "partitioner")
    ),
    _member("layer.input_shape", "layer.input.shape", mended=True),
    _member("layer.output_shape", "layer.output.shape", mended=True),
    _member(".add_metric", "a metric of the layer: self.metric.update_state(...) in call()"),
    _member(".add_update", "assign to a variable in call()"),
    # Models.
    _renamed(_MODELS, "input", "inputs"),
    _renamed(_MODELS, "output", "outputs"),
    _renamed((".compile",), "experimental_steps_per_execution", "steps_per_execution"),
    _gone((".compile",), "experimental_run_tf_function"),
    _gone((".compile",), "sample_weight_mode", "sample weights of the shape of the targets"),
    _gone((".compile",), "options"),
    _gone((".compile",), "run_metadata"),
    _by_hand((".compile",), "target_tensors", "targets in the data that fit gets"),
    *(_gone(_LOOPS, name, _WORKERS) for name in ("workers", "use_multiprocessing")),
    _gone(_LOOPS, "max_queue_size", _WORKERS),
    _renamed((".fit",), "nb_epoch", "epochs"),
    *(
        _member(f".{name}_generator", f"{name}: it takes generators", mended=True, to=name)
        for name in ("fit", "evaluate", "predict")
    ),
    *(
        _renamed((f".{name}_generator",), "generator", "x")
        for name in ("fit", "evaluate", "predict")
    ),
    _member(".predict_classes", "predict(x).argmax(-1)", mended=True),
    _member("model.predict_proba", "predict", mended=True, to="predict"),
    _member(
        ".reset_states", "reset_state; of a model, for each layer that has it", mended=True
    ),
    _by_hand((".train_on_batch", ".test_on_batch"), "reset_metrics", _RESET, mended=True),
    _member("model.to_yaml", "to_json", to="to_json"),
    _member("model.state_updates", "model.non_trainable_variables"),
    _renamed((".set_pipelining_options",), _COUNT, _STEPS, mended=False),
    # Files.
    _suffix(("model.save_weights",), ".weights.h5", ""),
    _suffix(("model.load_weights",), ".weights.h5", ".h5 .keras .npy .pkl .pt"),
    _gone(("model.save_weights", "model.save"), "save_format", "the ending of the file name"),
    _gone(("model.save_weights", "model.load_weights", "model.save"), "options"),
    _gone(("model.save",), "include_optimizer"),
    _by_hand(
        ("model.load_weights",),
        "by_name",
        "skip_mismatch=True, or layer.set_weights() of the layers that are meant",
    ),
    _member(".expect_partial", "nothing: load_weights returns nothing", mended=True, to="{}"),
    _member(".assert_consumed", "nothing: load_weights checks all itself", mended=True, to="{}"),
    _suffix(_SAVES, ".keras", ".h5 .hdf5"),
    _suffix(_CHECKPOINT, ".keras", ".h5", ", or with save_weights_only=True .weights.h5"),
    Habit(
        _CHECKPOINT,
        "period",
        "save_freq='epoch'",
        Edit.ARGUMENT,
        'save_freq="epoch"',
        value="1",
    ),
    _by_hand(_CHECKPOINT, "period", "save_freq=period * steps_per_epoch batches", mended=True),
    _gone(_CHECKPOINT, "load_weights_on_restart"),
    _gone(_CHECKPOINT, "options"),
    _gone(_CHECKPOINT, "include_optimizer"),
    _renamed(("keras.callbacks.ReduceLROnPlateau",), "epsilon", "min_delta"),
    *(
        _gone(("keras.callbacks.TensorBoard",), name)
        for name in ("batch_size", "write_grads", "embeddings_layer_names", "embeddings_data")
    ),
    _member(".assign_from_checkpoint", "model.load_weights('name.weights.h5')"),
    _member(".export_for_ipu_inference", SERVING),
    _member(".export_for_ipu_serving", SERVING),
    # Losses, metrics and utilities.
    Habit(
        ("keras.losses.",),
        "reduction",
        "'sum_over_batch_size'",
        Edit.ARGUMENT,
        "reduction='sum_over_batch_size'",
        value="'auto'",
    ),
    _by_hand(("keras.utils.to_categorical",), "dtype", ".astype(dtype)", mended=True),
    # Tensors and variables.
    _member(".get_shape", "x.shape", mended=True, to="{}.shape"),
    _member("get_shape.as_list", "list(x.shape)", mended=True, to="list({})"),
    _member("get_shape.num_elements", "math.prod(x.shape)", mended=True),
    _member("get_shape.ndims", "len(x.shape)", mended=True),
    _member("get_shape.rank", "len(x.shape)", mended=True),
    _member("shape.as_list", "list(x.shape)", to="list({})"),
    _member(".as_list", "list(x.shape)"),
    _member(".num_elements", "math.prod(x.shape)"),
    _member(".set_shape", "keras.ops.reshape"),
    _member("shape.ndims", "len(x.shape)"),
    _member("shape.rank", "len(x.shape)"),
    _member("shape.dims", "x.shape"),
    _member("shape.is_fully_defined", "None not in x.shape"),
    _member("shape.assert_has_rank", "assert len(x.shape) == rank"),
    _member("shape.is_compatible_with", "x.shape == shape"),
    _member("shape.assert_is_compatible_with", "assert x.shape == shape"),
    _member("shape.with_rank", "x.shape, which is a tuple"),
    _member("dtype.size", "numpy.dtype(x.dtype).itemsize"),
    _member("dtype.as_numpy_dtype", "numpy.dtype(x.dtype)"),
    _member("dtype.base_dtype", "x.dtype"),
    *(
        _member(f"dtype.is_{name}", f"jax.numpy.issubdtype(x.dtype, jax.numpy.{name})")
        for name in ("floating", "integer")
    ),
    _member("dtype.is_bool", "x.dtype == bool"),
    _member(".read_value", "variable.value", mended=True, to="{}.value"),
    _member(".experimental_ref", "id(x)"),
    _member(".sparse_read", "keras.ops.take(variable, indices, axis=0)"),
    _member(
        ".scatter_nd_update",
        "variable.assign(keras.ops.scatter_update(variable, indices, updates))",
    ),
    _member(".jacobian", "jax.jacrev(fn)"),
    _member(".batch_jacobian", "jax.vmap(jax.jacrev(fn))"),
    # Data sets, queues and strategies.
    _member(".make_one_shot_iterator", "iter(dataset)", to="iter({})"),
    _member(".make_initializable_iterator", "iter(dataset)"),
    _member(".interleave", f"{_GENERATOR}that reads the files in turns"),
    _member(".parallel_interleave", f"{_GENERATOR}that reads the files in turns"),
    _member(".flat_map", _GENERATOR.removesuffix(" ")),
    _member(".padded_batch", "batch, of rows that a generator pads: keras.utils.pad_sequences"),
    _member(".group_by_window", f"{_GENERATOR}that sorts rows by length"),
    _member(".rejection_resample", f"{_GENERATOR}that draws rows"),
    _member("dataset.scan", f"{_GENERATOR}that keeps the state"),
    _member("dataset.snapshot", "cache"),
    _member(
        "dataset.window", "Dataset.from_generator, or keras.utils.timeseries_dataset_from_array"
    ),
    _member(".enqueue_many", "enqueue, for each value"),
    _member(".experimental_run_v2", "run", to="run"),
)  # fmt: skip

# Methods that subclasses of optimizers define, which Keras 3 does not call.
_STEP = "update_step(self, gradient, variable, learning_rate)"
OVERRIDES = {
    "_resource_apply_dense": _STEP,
    "_resource_apply_sparse": _STEP,
    "_apply_dense": _STEP,
    "_create_slots": "build(self, variables)",
    "get_updates": _STEP,
    "get_gradients": "keras.optimizers.LossScaleOptimizer, or a loss of your own",
}
