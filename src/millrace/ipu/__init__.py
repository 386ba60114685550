"""`tensorflow.python.ipu` on Keras 3 and JAX: change the import line, and run.

    from tensorflow.python import ipu   ->   from millrace import ipu

Names and defaults are the IPU's. So are its rules, where they differ from millrace's own: what an
execution is, how replicas are counted, when a model is built (`keras/extensions/`).

Where the IPU has a module by several names, `_ALIASES` has the others; each gives the very module.
"""

import importlib
from typing import TYPE_CHECKING, Any

from millrace._compat.module_aliases import serve as _serve
from millrace.ipu.environment import read_once as _read_once
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


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"millrace.ipu.{name}")
    raise AttributeError(f"module 'millrace.ipu' has no attribute {name!r}")


_serve({f"{__name__}.{name}": f"{__name__}.{meant}" for name, meant in _ALIASES.items()}, __name__)
_read_once()  # TF_POPLAR_FLAGS, POPLAR_LOG_LEVEL
