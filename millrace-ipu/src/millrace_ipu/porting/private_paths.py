"""Private modules of TensorFlow that programs import, and the public names of what is in them.

public_name("tensorflow.python.data.ops.dataset_ops.Dataset")    -> "tensorflow.data.Dataset"
public_name("tensorflow.python.ops.math_ops.reduce_mean")        -> "tensorflow.reduce_mean"
public_name("tensorflow.python.framework.ops.convert_to_tensor") -> "tensorflow.convert_to_tensor"

`millrace run` serves these modules, each with the public names of its packages; `millrace port`
writes the public name.
"""

from collections.abc import Callable

_PRIVATE = "tensorflow.python."
_COMPAT = "compat.v1"

# Of each module the public packages that have its names, in the order in which they are asked. An
# empty string is `tensorflow` itself.
PACKAGES = {
    "autograph": ("autograph",),
    "client.session": (_COMPAT,),
    "data": ("data", "data.experimental"),
    "data.experimental": ("data.experimental",),
    "data.ops.dataset_ops": ("data",),
    "data.ops.iterator_ops": ("data",),
    "data.ops.options": ("data",),
    "data.ops.readers": ("data",),
    "data.util.nest": ("nest",),
    "distribute": ("distribute",),
    "distribute.distribute_lib": ("distribute",),
    "distribute.distribution_strategy_context": ("distribute",),
    "eager.backprop": ("",),
    "eager.context": ("", _COMPAT),
    "eager.def_function": ("",),
    "eager.function": ("",),
    "eager.polymorphic_function": ("",),
    "framework.constant_op": ("", _COMPAT),
    "framework.dtypes": ("",),
    "framework.errors": ("errors",),
    "framework.errors_impl": ("errors",),
    "framework.indexed_slices": ("",),
    "framework.ops": ("", _COMPAT),
    "framework.random_seed": ("random", _COMPAT),
    "framework.sparse_tensor": ("", "sparse"),
    "framework.tensor": ("",),
    "framework.tensor_shape": ("",),
    "framework.tensor_spec": ("",),
    "framework.tensor_util": ("",),
    "framework.test_util": ("test",),
    "layers": ("keras.layers", f"{_COMPAT}.layers"),
    "lib.io.file_io": ("io.gfile",),
    "lib.io.tf_record": ("io", "data"),
    "module.module": ("",),
    "ops": ("", "math", "nn", _COMPAT),
    "ops.array_ops": ("", _COMPAT),
    "ops.check_ops": ("debugging", _COMPAT),
    "ops.clip_ops": ("",),
    "ops.control_flow_ops": ("", _COMPAT),
    "ops.custom_gradient": ("",),
    "ops.embedding_ops": ("nn",),
    "ops.gradients": ("",),
    "ops.gradients_impl": ("",),
    "ops.image_ops": ("image",),
    "ops.init_ops": ("keras.initializers", _COMPAT),
    "ops.init_ops_v2": ("keras.initializers", ""),
    "ops.linalg_ops": ("linalg", ""),
    "ops.logging_ops": ("", _COMPAT),
    "ops.losses": ("keras.losses", f"{_COMPAT}.losses"),
    "ops.map_fn": ("",),
    "ops.math_ops": ("math", ""),
    "ops.metrics": ("keras.metrics", f"{_COMPAT}.metrics"),
    "ops.nn": ("nn",),
    "ops.nn_impl": ("nn",),
    "ops.nn_ops": ("nn",),
    "ops.parsing_ops": ("io", _COMPAT),
    "ops.random_ops": ("random", _COMPAT),
    "ops.resource_variable_ops": ("",),
    "ops.rnn": (f"{_COMPAT}.nn",),
    "ops.rnn_cell": (f"{_COMPAT}.nn.rnn_cell",),
    "ops.script_ops": ("", _COMPAT),
    "ops.sparse_ops": ("sparse",),
    "ops.standard_ops": ("", _COMPAT),
    "ops.state_ops": ("", _COMPAT),
    "ops.string_ops": ("strings",),
    "ops.summary_ops_v2": ("summary",),
    "ops.tensor_array_ops": ("",),
    "ops.variable_scope": (_COMPAT,),
    "ops.variables": ("", _COMPAT),
    "ops.while_loop": ("",),
    "ops.cond": ("",),
    "platform.app": (f"{_COMPAT}.app",),
    "platform.flags": (f"{_COMPAT}.flags",),
    "platform.gfile": ("io.gfile", f"{_COMPAT}.gfile"),
    "platform.googletest": ("test",),
    "platform.test": ("test",),
    "platform.tf_logging": (f"{_COMPAT}.logging",),
    "profiler": ("profiler", "profiler.experimental"),
    "saved_model": ("saved_model",),
    "summary": ("summary", f"{_COMPAT}.summary"),
    "tools": ("tools",),
    "tpu": ("tpu",),
    "trackable": ("train",),
    "training": (f"{_COMPAT}.train", "train"),
    "training.tracking": ("train",),
    "types.core": ("",),
    "util.nest": ("nest",),
    "util.tf_export": ("__internal__",),
    "util.tf_inspect": ("__internal__",),
}  # fmt: skip

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
