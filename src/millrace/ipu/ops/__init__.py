"""Operations of IPU programs."""

from types import ModuleType

from millrace.ipu.lazy_modules import submodule as _submodule

_MODULES = ("cross_replica_ops", "pipelining_ops", "replication_ops")


def __getattr__(name: str) -> ModuleType:
    return _submodule(__name__, name, _MODULES)
