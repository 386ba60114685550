"""Operations of IPU programs."""

import importlib as _importlib
from types import ModuleType

from millrace.ipu.lazy_modules import submodule as _submodule
from millrace.ipu.replacements import unsupported_modules as _unsupported_modules

_MODULES = ("cross_replica_ops", "pipelining_ops", "replication_ops")


def __getattr__(name: str) -> ModuleType:
    if name in _unsupported_modules() and name not in _MODULES:
        return _importlib.import_module(f"{__name__}.{name}")
    return _submodule(__name__, name, _MODULES)
