"""Operations of IPU programs."""

import importlib as _importlib
from types import ModuleType

from millrace_ipu.ipu.lazy_modules import submodule as _submodule
from millrace_ipu.ipu.replacements import unsupported_modules as _unsupported_modules

_MODULES = (
    "control_flow_ops", "cross_replica_ops", "embedding_ops", "functional_ops", "internal_ops",
    "math_ops", "nn_ops", "normalization_ops", "pipelining_ops", "rand_ops", "replication_ops",
)  # fmt: skip


def __getattr__(name: str) -> ModuleType:
    if name in _unsupported_modules() and name not in _MODULES:
        return _importlib.import_module(f"{__name__}.{name}")
    return _submodule(__name__, name, _MODULES)
