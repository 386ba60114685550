"""What programs for Keras 2 write, and what Keras 3 takes in its place: the table of habits.

keras.optimizers.SGD(lr=0.1)                 learning_rate=0.1      an argument with another name
model.fit(x, y, workers=4)                   model.fit(x, y)        an argument that is gone
keras.Input(shape=(80))                      shape=(80,)            a number for a shape
model.save_weights("out/w")                  "out/w.weights.h5"     a file name
keras.utils.np_utils.to_categorical(y)       keras.utils.to_...     a name: `names.py`

`millrace run` mends the habits that say so, with the meaning that they had; `millrace port` reports
all of them, and rewrites those that have an `edit`.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass


class Edit(enum.Enum):
    """How the text of a program is rewritten; `Habit.to` is what the edit needs."""

    RENAME = "the argument, or the method, gets the name `to`"
    REMOVE = "the argument is left out"
    TUPLE = "the number becomes a tuple: `80` -> `(80,)`"
    SUFFIX = "the file name, if it is a literal, ends with `to`"
    KEYWORD = "the first argument, a name, is passed as `name=`"
    VALUE = "the value of the argument becomes the source text `to`"


@dataclass(frozen=True, slots=True)
class Habit:
    """One thing that programs for Keras 2 write.

    Attributes:
        of: the functions that it concerns: canonical names, such as `keras.Input`; a name that
            ends with a dot stands for all members of a module, one that begins with a dot for a
            method of any object.
        argument: the keyword argument; an empty string for the call itself.
        instead: what to write, in the words of findings and of errors.
        edit: how the text is rewritten; None if a person must do it.
        to: what the edit needs.
        mended: whether `millrace run` gives it the meaning that it had.
        value: the source text of the value that is meant, such as `'auto'`; empty for any.
        number: whether it is meant only where the value is a number, in place of a shape.
        position: index of the positional argument that may stand for `argument`.
    """

    of: tuple[str, ...]
    argument: str
    instead: str
    edit: Edit | None = None
    to: str = ""
    mended: bool = True
    value: str = ""
    number: bool = False
    position: int | None = None

    def concerns(self, function: str) -> bool:
        """Whether it is about a function: a canonical name, or `.method`."""
        return any(function.startswith(o) if o[-1] == "." else function == o for o in self.of)


def habits_of(function: str) -> Iterator[Habit]:
    """Yields the habits in calls of a function: a canonical name, or `.method`."""
    return (habit for habit in HABITS if habit.concerns(function))


_LOOPS = (".fit", ".evaluate", ".predict", ".fit_generator", ".evaluate_generator",
          ".predict_generator")  # fmt: skip
_OPTIMIZERS = ("keras.optimizers.",)
_LOSS_SCALE = ("keras.optimizers.LossScaleOptimizer", "keras.mixed_precision.LossScaleOptimizer")
_LAYERS = ("keras.layers.",)
_RECURRENT = ("keras.layers.LSTM", "keras.layers.GRU", "keras.layers.SimpleRNN", "keras.layers.RNN")
_CONVOLUTIONS = tuple(f"keras.layers.Conv{kind}" for kind in ("1D", "2D", "3D", "2DTranspose"))
_POOLINGS = tuple(f"keras.layers.{kind}Pooling{n}D" for kind in ("Max", "Average") for n in "123")
_INPUTS = ("keras.Input", "keras.layers.Input", "keras.layers.InputLayer")
_CHECKPOINT = "keras.callbacks.ModelCheckpoint"
_WITHOUT = "nothing: leave it out"
_WORKERS = "leave it out, or an argument of keras.utils.PyDataset"
_DECAY = "learning_rate=keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay)"


def _renamed(of: tuple[str, ...], argument: str, new: str, mended: bool = True) -> Habit:
    return Habit(of, argument, f"{new}=", Edit.RENAME, new, mended)


def _gone(of: tuple[str, ...], argument: str, instead: str = _WITHOUT) -> Habit:
    return Habit(of, argument, instead, Edit.REMOVE)


def _by_hand(of: tuple[str, ...], argument: str, instead: str, mended: bool = False) -> Habit:
    return Habit(of, argument, instead, mended=mended)


def _tuple(of: tuple[str, ...], argument: str, position: int | None = None) -> Habit:
    instead = f"a tuple: {argument}=(n,)"
    return Habit(of, argument, instead, Edit.TUPLE, number=True, position=position)


def _suffix(of: tuple[str, ...], argument: str, suffix: str) -> Habit:
    instead = f"a file name that ends with {suffix}"
    return Habit(of, argument, instead, Edit.SUFFIX, suffix, position=0)


HABITS: tuple[Habit, ...] = (
    # Optimizers.
    _renamed(_OPTIMIZERS, "lr", "learning_rate"),
    _by_hand(_OPTIMIZERS, "decay", _DECAY, mended=True),
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
        _LOSS_SCALE,
        "dynamic",
        "optimizer.loss_scale_factor = scale, without the wrapper",
        mended=False,
        value="False",
    ),
    Habit(_OPTIMIZERS, "epsilon", _WITHOUT, Edit.REMOVE, value="None"),
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
    _tuple((".add_weight", ".add_variable"), "shape"),
    # Layers.
    _by_hand(_RECURRENT, "time_major", "inputs of shape (batch, time, features)"),
    _gone(("keras.layers.BatchNormalization",), "fused"),
    _by_hand(
        ("keras.layers.BatchNormalization",),
        "virtual_batch_size",
        "a smaller batch, with gradient accumulation",
    ),
    Habit(
        ("keras.layers.BatchNormalization",),
        "axis",
        "the number in the list: axis=3",
        value="[n]",
    ),
    _gone(_LAYERS, "dynamic"),
    _renamed(("keras.layers.LeakyReLU",), "alpha", "negative_slope"),
    _renamed(_CONVOLUTIONS + _POOLINGS, "border_mode", "padding"),
    _renamed(_CONVOLUTIONS, "subsample", "strides"),
    _renamed(_CONVOLUTIONS, "nb_filter", "filters"),
    _renamed(("keras.layers.Dense",), "output_dim", "units"),
    _renamed(("keras.layers.Dropout",), "p", "rate"),
    Habit(
        (".add_weight", ".add_variable"),
        "",
        "add_weight(shape=..., name='w'): the name as a keyword",
        Edit.KEYWORD,
        value="'name'",
        position=0,
    ),
    Habit((".add_variable",), "", "add_weight", Edit.RENAME, "add_weight"),
    *(
        _gone((".add_weight", ".add_variable"), name)
        for name in ("use_resource", "synchronization", "getter", "collections", "partitioner")
    ),
    # Models.
    _renamed(("keras.Model", "keras.models.Model"), "input", "inputs"),
    _renamed(("keras.Model", "keras.models.Model"), "output", "outputs"),
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
        Habit((f".{name}_generator",), "", f"{name}: it takes generators", Edit.RENAME, name)
        for name in ("fit", "evaluate", "predict")
    ),
    *(
        _renamed((f".{name}_generator",), "generator", "x")
        for name in ("fit", "evaluate", "predict")
    ),
    Habit((".predict_classes",), "", "predict(x).argmax(-1)"),
    Habit((".predict_proba",), "", "predict", Edit.RENAME, "predict"),
    Habit((".reset_states",), "", "reset_state; of a model, for each layer that has it"),
    _by_hand(
        (".train_on_batch",), "reset_metrics", "model.reset_metrics() before the call", mended=True
    ),
    _by_hand(
        (".test_on_batch",), "reset_metrics", "model.reset_metrics() before the call", mended=True
    ),
    Habit((".to_yaml",), "", "to_json", Edit.RENAME, "to_json", mended=False),
    Habit(
        (".add_metric",),
        "",
        "a metric of the layer: self.metric.update_state(...) in call()",
        mended=False,
    ),
    Habit((".add_update",), "", "assign to a variable in call()", mended=False),
    # Files.
    _suffix((".save_weights", ".load_weights"), "filepath", ".weights.h5"),
    _gone((".save_weights", ".save"), "save_format", "the ending of the file name"),
    _gone((".save_weights", ".load_weights", ".save"), "options"),
    _gone((".save",), "include_optimizer"),
    _by_hand(
        (".load_weights",),
        "by_name",
        "skip_mismatch=True, or layer.set_weights() of the layers that are meant",
    ),
    Habit((".expect_partial",), "", "nothing: load_weights returns nothing"),
    Habit((".assert_consumed",), "", "nothing: load_weights checks all weights itself"),
    _suffix((".save", "keras.models.save_model", "keras.models.load_model"), "filepath", ".keras"),
    _suffix((_CHECKPOINT,), "filepath", ".keras, or with save_weights_only=True .weights.h5"),
    _by_hand(
        (_CHECKPOINT,),
        "period",
        "save_freq='epoch', or save_freq=period * steps_per_epoch batches",
        mended=True,
    ),
    _gone((_CHECKPOINT,), "load_weights_on_restart"),
    _gone((_CHECKPOINT,), "options"),
    _gone((_CHECKPOINT,), "include_optimizer"),
    _renamed(("keras.callbacks.ReduceLROnPlateau",), "epsilon", "min_delta"),
    *(
        _gone(("keras.callbacks.TensorBoard",), name)
        for name in ("batch_size", "write_grads", "embeddings_layer_names", "embeddings_data")
    ),
    # Losses, metrics and utilities.
    Habit(
        ("keras.losses.",),
        "reduction",
        "'sum_over_batch_size'",
        Edit.VALUE,
        "'sum_over_batch_size'",
        value="'auto'",
    ),
    _by_hand(("keras.utils.to_categorical",), "dtype", ".astype(dtype)", mended=True),
    # Tensors and variables.
    Habit((".get_shape",), "", "x.shape"),
    Habit((".as_list",), "", "list(x.shape)", mended=False),
    Habit((".num_elements",), "", "math.prod(x.shape)", mended=False),
    Habit((".set_shape",), "", "keras.ops.reshape", mended=False),
    Habit((".read_value",), "", "variable.value"),
    Habit((".get_gradients",), "", "millrace.value_and_grad", mended=False),
    Habit((".make_one_shot_iterator",), "", "iter(dataset)", mended=False),
    Habit((".make_initializable_iterator",), "", "iter(dataset)", mended=False),
)

# Attributes that only their object tells apart, by the last two names: `optimizer.lr`. Those of a
# dtype, which is text in Keras 3, are not mended.
ATTRIBUTES = {
    "optimizer.lr": "optimizer.learning_rate",
    "optimizer.weights": "optimizer.variables",
    "dtype.size": "numpy.dtype(x.dtype).itemsize",
    "dtype.as_numpy_dtype": "x.dtype",
    "layer.input_shape": "layer.input.shape",
    "layer.output_shape": "layer.output.shape",
}
