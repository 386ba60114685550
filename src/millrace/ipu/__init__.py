"""`tensorflow.python.ipu` on Keras 3 and JAX: change the import line, and run.

Names and defaults are the IPU's. So are its rules, where they differ from millrace's own: what an
execution is, how replicas are counted, when a model is built (`keras/extensions/`).

from tensorflow.python import ipu   ->   from millrace import ipu
"""

import importlib
from typing import Any

from millrace.ipu.environment import read_once as _read_once
from millrace.ipu.guide import porting_guide as porting_guide

_MODULES = (
    "config", "cross_replica_ops", "dataset_benchmark", "gradient_accumulation", "ipu_compiler",
    "ipu_infeed_queue", "ipu_outfeed_queue", "ipu_strategy", "keras", "loops", "ops",
    "optimizers", "pipelining_ops", "replication_ops", "scopes", "utils",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"millrace.ipu.{name}")
    raise AttributeError(f"module 'millrace.ipu' has no attribute {name!r}")


_read_once()  # TF_POPLAR_FLAGS, POPLAR_LOG_LEVEL
