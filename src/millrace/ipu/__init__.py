"""`tensorflow.python.ipu` on Keras 3 and JAX: change the import line, and run.

    from tensorflow.python import ipu   ->   from millrace import ipu

Names and defaults are the IPU's, and so are the rules where they differ from millrace's: the
length of an execution, the count of replicas, the building of models (`keras/extensions/`).

`_ALIASES` lists further names of modules; importing one gives the same module object.
"""

from types import ModuleType
from typing import TYPE_CHECKING

from millrace._compat.module_aliases import serve as _serve
from millrace.ipu.environment import read_variables as _read_variables
from millrace.ipu.lazy_modules import submodule as _submodule
from millrace.ipu.old_models import porting_guide as porting_guide

if TYPE_CHECKING:
    from millrace.ipu.ops import cross_replica_ops as cross_replica_ops
    from millrace.ipu.ops import pipelining_ops as pipelining_ops
    from millrace.ipu.ops import replication_ops as replication_ops

_ALIASES = {
    "addons.keras": "keras",  # ipu_tensorflow_addons.keras
    "cross_replica_ops": "ops.cross_replica_ops",
    "keras.optimizers.cross_replica_optimizer": "keras.optimizers",
    "keras.optimizers.gradient_accumulation_optimizer": "keras.optimizers",
    "keras.optimizers.map_gradient_optimizer": "keras.optimizers",
    "pipelining_ops": "ops.pipelining_ops",
    "replication_ops": "ops.replication_ops",
}
_MODULES = (
    "config", "cross_replica_ops", "dataset_benchmark", "gradient_accumulation", "ipu_compiler",
    "ipu_infeed_queue", "ipu_outfeed_queue", "ipu_strategy", "keras", "loops", "ops",
    "optimizers", "pipelining_ops", "replication_ops", "scopes", "utils",
)  # fmt: skip


def __getattr__(name: str) -> ModuleType:
    return _submodule(__name__, name, _MODULES)


_serve({f"{__name__}.{name}": f"{__name__}.{own}" for name, own in _ALIASES.items()}, __name__)
_read_variables()  # TF_POPLAR_FLAGS, POPLAR_LOG_LEVEL
