"""All patches. Where a library has moved a name between its versions, `owner` looks for it.

The replacement of each function is in the module that puts it in; `docs/patches.md` is written from
this table.
"""

import sys
from typing import Any

import keras
from jax._src import api
from keras.src.backend.jax import trainer
from keras.src.losses import loss
from keras.src.ops.function import Function
from keras.src.ops.node import Node
from keras.src.ops.operation import Operation
from keras.src.saving import saving_lib
from keras.src.trainers import trainer as base_trainer

from millrace._compat.patches import Patch, While
from millrace._compat.versions import owners


def _caller_of_remat() -> Any:
    """Returns the module whose `remat` Keras's layers call: the last one that hands it on."""
    return owners("remat")[-1]


def _caller_of_cond() -> Any:
    """Returns the module whose `cond` Keras calls: the one that defines it."""
    return owners("cond")[0]


def _trainer() -> Any:
    """Returns the class that `fit`, `evaluate` and `predict` of every model are inherited from."""
    return next(kind for kind in keras.Model.__mro__ if "fit" in vars(kind))


MODEL_INIT = Patch(
    "keras.Model.__init__",
    "attaches models that are built, cloned or loaded in a scope",
    While.MODELS,
    lambda: keras.Model,
    "__init__",
)
LOADING_FAILURE = Patch(
    "keras.src.saving.saving_lib._raise_loading_failure",
    "raises the error about options that are damaged, where Keras quotes it in another one",
    While.MODELS,
    lambda: saving_lib,
    "_raise_loading_failure",
    ("error_msgs",),
)
SUPPORTS_JIT = Patch(
    "keras.src.trainers.trainer.model_supports_jit",
    "lets `compile` choose `jit_compile=True` where all layers of an attached model can be traced",
    While.MODELS,
    lambda: base_trainer,
    "model_supports_jit",
    ("model",),
)
FIT, EVALUATE, PREDICT = (
    Patch(
        f"keras.Model.{name}",
        "notes whose loop runs, for the next patch",
        While.MODELS,
        _trainer,
        name,
        ("self", "x"),
    )
    for name in ("fit", "evaluate", "predict")
)
EPOCH_ITERATOR = Patch(
    "keras.src.backend.jax.trainer.JAXEpochIterator",
    "gives the loops of attached models, and of no others, batches from an infeed",
    While.MODELS,
    lambda: trainer,
    "JAXEpochIterator",
)
LAYER_CALL = Patch(
    "keras.Layer.__call__",
    "finds the layers of each equation of a traced step: for stages, statistics and boundaries",
    While.MODELS,
    lambda: keras.Layer,
    "__call__",
    ("self",),
)
STATELESS_CALL = Patch(
    "keras.Layer.stateless_call",
    "begins to count the calls in a model anew",
    While.MODELS,
    lambda: keras.Layer,
    "stateless_call",
    ("self",),
)
GRAPH_RUN = Patch(
    "keras.Function._run_through_graph",
    "finds the node of each call in a graph",
    While.MODELS,
    lambda: Function,
    "_run_through_graph",
    ("self", "inputs", "operation_fn", "call_fn"),
)
REMAT = Patch(
    "keras.remat",
    "lets statistics be taken in layers that Keras runs again in backward",
    While.MODELS,
    _caller_of_remat,
    "remat",
    ("f",),
)
BATCH_MOMENTS = Patch(
    "keras.layers.BatchNormalization._moments",
    "takes the statistics of a batch over all replicas",
    While.MODELS,
    lambda: keras.layers.BatchNormalization,
    "_moments",
    ("self", "inputs", "mask"),
)
NODE_INIT = Patch(
    "keras.Node.__init__",
    "notes the `PipelineStage` that a call was made in",
    While.MODELS,
    lambda: Node,
    "__init__",
    ("self",),
)
OPERATION_INIT = Patch(
    "keras.Operation.__init__",
    "notes the `PipelineStage` that a layer was made in",
    While.MODELS,
    lambda: Operation,
    "__init__",
    ("self", "name"),
)
COND = Patch(
    "keras.ops.cond",
    "keeps what branches assign to variables, in functions of `millrace.compile`",
    While.MODELS,
    _caller_of_cond,
    "cond",
    ("pred", "true_fn", "false_fn"),
)
COND_OF_OPTIMIZERS = Patch(
    "keras.src.backend.ops.cond",
    "the same in optimizers, which look it up there from Keras 3.16 on",
    While.MODELS,
    lambda: owners("cond")[-1],
    "cond",
    ("pred", "true_fn", "false_fn"),
)
REDUCE_LOSS = Patch(
    "keras.src.losses.loss.reduce_weighted_values",
    "lets the losses of a part of a batch divide by numbers of the whole batch",
    While.MODELS,
    lambda: loss,
    "reduce_weighted_values",
    ("values", "sample_weight", "mask", "reduction", "dtype"),
)
OPTIMIZER_INIT = Patch(
    "keras.optimizers.Optimizer.__init__",
    "lets optimizers be made in functions of `millrace.compile`",
    While.MODELS,
    lambda: keras.optimizers.Optimizer,
    "__init__",
    ("self", "learning_rate"),
)
VARIABLE_INIT = Patch(
    "keras.Variable._initialize_with_initializer",
    "gives the large variables of a model that is built for a target a shape and no value",
    While.MODELS,
    lambda: keras.Variable,
    "_initialize_with_initializer",
    ("self", "initializer"),
)
VARIABLE_LATER = Patch(
    "keras.Variable._deferred_initialize",
    "the same for variables that are made while a shape is inferred",
    While.MODELS,
    lambda: keras.Variable,
    "_deferred_initialize",
    ("self",),
)
CALL_WITHOUT_VALUES = Patch(
    "keras.Layer.__call__, without values",
    "infers the shapes of outputs where such a model is called for arrays, to have it built",
    While.MODELS,
    lambda: keras.Layer,
    "__call__",
    ("self",),
)
VARIABLE_ASSIGN = Patch(
    "keras.Variable._direct_assign",
    "lets values that are assigned to them, such as loaded weights, have no effect",
    While.MODELS,
    lambda: keras.Variable,
    "_direct_assign",
    ("self", "value"),
)
TAKE_GRADIENTS = Patch(
    "jax.value_and_grad",
    "finds where a `train_step` of one's own takes gradients, while it is traced",
    While.MODELS,
    lambda: api,
    "_vjp" if hasattr(api, "_vjp") else "vjp",
    ("fun",),
)
COMPILATION_CACHE = Patch(
    "jax._src.compilation_cache._cache",
    "lets JAX keep executables in files that are verified, written whole and limited in number",
    While.CACHE,
)
EXCEPTHOOK = Patch(
    "sys.excepthook",
    "tells the other processes of a run what this one failed with",
    While.PROCESSES,
    lambda: sys,
    "excepthook",
)
EXIT = Patch(
    "sys.exit",
    "tells them the status that this process has ended with, which nothing else in Python knows",
    While.PROCESSES,
    lambda: sys,
    "exit",
)

INTERRUPTS = Patch(
    "the handler of SIGINT",
    "holds Ctrl-C back until a place where the model is whole; not where a program has its own",
    While.LOOPS,
)
TERMINATION = Patch(
    "the handler of SIGTERM",
    "saves a checkpoint before the process ends; not where a program has its own",
    "while a fit with `Checkpoint` runs in the main thread",
)
# Not put in by `patches.py`, which stands on Keras: `base/collector.py` runs before Keras is there.
COLLECTOR = Patch(
    "gc.set_threshold",
    "lets the garbage collector run rarely while many objects are made that stay",
    "while Keras is imported by millrace, and while programs are traced",
)

PATCHES = tuple(value for value in tuple(globals().values()) if isinstance(value, Patch))
