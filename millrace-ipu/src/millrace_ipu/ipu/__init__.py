"""`tensorflow.python.ipu` on Keras 3 and JAX: change the import line, and run.

    from tensorflow.python import ipu   ->   from millrace_ipu import ipu

Names and defaults are the IPU's, and so are the rules where they differ from millrace's: the
length of an execution, the count of replicas, the building of models (`keras/extensions/`).

`_ALIASES` lists further names of modules; importing one gives the same module object.
"""

import importlib as _importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from millrace_ipu._compat.keras_attributes import let_attributes_be_read as _let_attributes_be_read
from millrace_ipu._compat.module_aliases import serve as _serve
from millrace_ipu._compat.patch_table import IPU_ATTRIBUTE as _IPU_ATTRIBUTE
from millrace_ipu.ipu.environment import read_variables as _read_variables
from millrace_ipu.ipu.ops.operations import outlined_function as outlined_function
from millrace_ipu.ipu.replacements import porting_guide as porting_guide
from millrace_ipu.ipu.replacements import submodule as _submodule
from millrace_ipu.ipu.replacements import unsupported_module as _unsupported_module
from millrace_ipu.ipu.replacements import unsupported_modules as _unsupported_modules

if TYPE_CHECKING:
    from millrace_ipu.ipu.ops import cross_replica_ops as cross_replica_ops
    from millrace_ipu.ipu.ops import pipelining_ops as pipelining_ops
    from millrace_ipu.ipu.ops import replication_ops as replication_ops

_ALIASES = {
    "addons.keras": "keras",  # ipu_tensorflow_addons.keras
    "control_flow_ops": "ops.control_flow_ops",
    "cross_replica_optimizer": "optimizers.ipu_optimizer",
    "cross_replica_ops": "ops.cross_replica_ops",
    "distributed.host_collective_ops": "distributed",
    "distributed.ipu_horovod_strategy": "distributed.popdist_strategy",
    "distributed.ipu_multi_replica_strategy": "distributed.popdist_strategy",
    "embedding_ops": "ops.embedding_ops",
    "functional_ops": "ops.functional_ops",
    "gradient_accumulation_optimizer": "optimizers.gradient_accumulation_optimizer",
    "horovod": "distributed",
    "internal_ops": "ops.internal_ops",
    "keras.optimizers.cross_replica_optimizer": "keras.optimizers",
    "keras.optimizers.gradient_accumulation_optimizer": "keras.optimizers",
    "keras.optimizers.map_gradient_optimizer": "keras.optimizers",
    "map_gradient_optimizer": "optimizers.ipu_optimizer",
    "math_ops": "ops.math_ops",
    "nn_ops": "ops.nn_ops",
    "normalization_ops": "ops.normalization_ops",
    "optimizers.cross_replica_optimizer": "optimizers.ipu_optimizer",
    "optimizers.map_gradient_optimizer": "optimizers.ipu_optimizer",
    "outfeed_callback": "tutorial",
    "outfeed_layers": "tutorial",
    "outfeed_optimizer": "tutorial",
    "outfeed_wrapper": "tutorial",
    "pipelining_ops": "ops.pipelining_ops",
    "rand_ops": "ops.rand_ops",
    "replication_ops": "ops.replication_ops",
}
_MODULES = (
    "autoshard", "config", "dataset_benchmark", "distributed", "gradient_accumulation",
    "ipu_compiler", "ipu_infeed_queue", "ipu_outfeed_queue", "ipu_strategy", "keras", "loops",
    "ops", "optimizers", "scopes", "utils", *(name for name in _ALIASES if "." not in name),
)  # fmt: skip

function = outlined_function  # its name in releases before 2.1


def __getattr__(name: str) -> Any:
    if name in _UNSUPPORTED:
        return _importlib.import_module(f"{__name__}.{name}")
    return _submodule(__name__, name, _MODULES)


def __dir__() -> list[str]:
    """Lists the names for users; a module is imported when it is first used."""
    return ["function", "outlined_function", "porting_guide", *_MODULES]


def _keras_ipu(module: str, name: str) -> ModuleType:
    if name == "ipu":
        return _submodule(__name__, "keras", _MODULES)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


_UNSUPPORTED = _unsupported_modules() - {*_MODULES, *_ALIASES}
_serve(
    {
        **{f"{__name__}.{name}": f"{__name__}.{own}" for name, own in _ALIASES.items()},
        # These have no module of their own, so that the last argument makes one.
        **{f"{__name__}.{name}": f"{__name__}.replacements.{name}" for name in _UNSUPPORTED},
        **{f"{__name__}.ops.{name}": f"{__name__}.replacements.{name}" for name in _UNSUPPORTED},
        "keras.ipu": f"{__name__}.keras",
    },
    __name__,
    _unsupported_module,
)
_let_attributes_be_read(_IPU_ATTRIBUTE, ["keras"], _keras_ipu)
_read_variables()  # TF_POPLAR_FLAGS, POPLAR_LOG_LEVEL
