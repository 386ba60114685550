"""Operations of IPU programs."""

import importlib
from typing import Any

_MODULES = ("cross_replica_ops", "pipelining_ops", "replication_ops")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"millrace.ipu.ops.{name}")
    raise AttributeError(f"module 'millrace.ipu.ops' has no attribute {name!r}")
