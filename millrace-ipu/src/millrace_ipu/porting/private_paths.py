"""Private modules of TensorFlow that programs import, and the public names of what is in them.

public_name("tensorflow.python.data.ops.dataset_ops.Dataset")    -> "tensorflow.data.Dataset"
public_name("tensorflow.python.ops.math_ops.reduce_mean")        -> "tensorflow.reduce_mean"
public_name("tensorflow.python.framework.ops.convert_to_tensor") -> "tensorflow.convert_to_tensor"

`millrace run` serves these modules, each with the public names of its packages; `millrace port`
writes the public name.
"""

from collections.abc import Callable

_PRIVATE = "tensorflow.python."

# Of each row of private modules the public packages that have their names, in the order in which
# they are asked. A dot is `tensorflow` itself.
_MODULES = {
    "autograph": "autograph",
    "compat.v1": "client.session ops.variable_scope",
    "data data.experimental": "data",
    "data.experimental": "data.experimental",
    "data": "data.ops.dataset_ops data.ops.iterator_ops data.ops.options data.ops.readers",
    "nest": "data.util.nest util.nest",
    "distribute": "distribute distribute.distribute_lib distribute.distribution_strategy_context",
    ".": (
        "eager.backprop eager.def_function eager.function eager.polymorphic_function "
        "framework.dtypes framework.indexed_slices framework.tensor framework.tensor_shape "
        "framework.tensor_spec framework.tensor_util module.module ops.clip_ops "
        "ops.custom_gradient ops.gradients ops.gradients_impl ops.map_fn "
        "ops.resource_variable_ops ops.tensor_array_ops ops.while_loop ops.cond types.core"
    ),
    ". compat.v1": (
        "eager.context framework.constant_op framework.ops ops.array_ops ops.control_flow_ops "
        "ops.logging_ops ops.script_ops ops.standard_ops ops.state_ops ops.variables"
    ),
    "errors": "framework.errors framework.errors_impl",
    "random compat.v1": "framework.random_seed ops.random_ops",
    ". sparse": "framework.sparse_tensor",
    "test": "framework.test_util platform.googletest platform.test",
    "keras.layers compat.v1.layers": "layers",
    "io.gfile": "lib.io.file_io",
    "io data": "lib.io.tf_record",
    ". math nn compat.v1": "ops",
    "debugging compat.v1": "ops.check_ops",
    "nn": "ops.embedding_ops ops.nn ops.nn_impl ops.nn_ops",
    "image": "ops.image_ops",
    "keras.initializers compat.v1": "ops.init_ops",
    "keras.initializers .": "ops.init_ops_v2",
    "linalg .": "ops.linalg_ops",
    "keras.losses compat.v1.losses": "ops.losses",
    "math .": "ops.math_ops",
    "keras.metrics compat.v1.metrics": "ops.metrics",
    "io compat.v1": "ops.parsing_ops",
    "compat.v1.nn": "ops.rnn",
    "compat.v1.nn.rnn_cell": "ops.rnn_cell",
    "sparse": "ops.sparse_ops",
    "strings": "ops.string_ops",
    "summary": "ops.summary_ops_v2",
    "compat.v1.app": "platform.app",
    "compat.v1.flags": "platform.flags",
    "io.gfile compat.v1.gfile": "platform.gfile",
    "compat.v1.logging": "platform.tf_logging",
    "profiler profiler.experimental": "profiler",
    "saved_model": "saved_model",
    "summary compat.v1.summary": "summary",
    "tools": "tools",
    "tpu": "tpu",
    "train": "trackable training.tracking",
    "compat.v1.train train": "training",
    "__internal__": "util.tf_export util.tf_inspect",
}
PACKAGES = {
    module: tuple(each.strip(".") for each in packages.split())
    for packages, modules in _MODULES.items()
    for module in modules.split()
}

# Names that are public by another name.
RENAMED = {
    "data.ops.dataset_ops.DatasetV1": "compat.v1.data.Dataset",
    "data.ops.dataset_ops.DatasetV2": "data.Dataset",
    "data.ops.iterator_ops.IteratorBase": "data.Iterator",
    "data.ops.iterator_ops.OwnedIterator": "data.Iterator",
    "data.ops.readers.TFRecordDatasetV2": "data.TFRecordDataset",
    "eager.context.eager_mode": "compat.v1.executing_eagerly",
    "framework.ops.EagerTensor": "Tensor",
    "framework.random_seed.set_random_seed": "random.set_seed",
    "ops.array_ops.placeholder": "compat.v1.placeholder",
    "ops.random_ops.random_normal": "random.normal",
    "ops.random_ops.random_shuffle": "random.shuffle",
    "ops.random_ops.random_uniform": "random.uniform",
    "ops.resource_variable_ops.BaseResourceVariable": "Variable",
    "ops.resource_variable_ops.ResourceVariable": "Variable",
    "ops.script_ops.py_func": "py_function",
    "ops.variables.RefVariable": "Variable",
    "ops.variables.VariableV1": "Variable",
    "training.adam.AdamOptimizer": "compat.v1.train.AdamOptimizer",
    "training.gradient_descent.GradientDescentOptimizer": (
        "compat.v1.train.GradientDescentOptimizer"
    ),
    "training.momentum.MomentumOptimizer": "compat.v1.train.MomentumOptimizer",
    "types.core.Tensor": "Tensor",
}


def packages_of(module: str) -> tuple[str, ...] | None:
    """Returns the public packages with the names of a private module; None if none are listed.

    Args:
        module: such as `tensorflow.python.framework.ops`.
    """
    path = module.removeprefix(_PRIVATE)
    while path and module.startswith(_PRIVATE):
        if path in PACKAGES:
            return PACKAGES[path]
        path = path.rpartition(".")[0]
    return None


def public_name(name: str, exists: Callable[[str], bool]) -> str | None:
    """Returns the public name for a private one; None if none is listed.

    Args:
        name: such as `tensorflow.python.framework.ops.convert_to_tensor`.
        exists: tells whether a public name exists; where none does, the first candidate is taken.
    """
    if not name.startswith(_PRIVATE):
        return None
    path = name.removeprefix(_PRIVATE)
    if path in RENAMED:
        return f"tensorflow.{RENAMED[path]}"
    module, _, last = path.rpartition(".")
    packages = PACKAGES.get(path) or packages_of(_PRIVATE + module)
    if packages is None:
        return None
    if path in PACKAGES:  # a module itself
        return f"tensorflow.{packages[0]}".rstrip(".")
    names = [".".join(filter(None, ("tensorflow", package, last))) for package in packages]
    return next((each for each in names if exists(each)), names[0])
