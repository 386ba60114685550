"""Operations of IPU programs."""

import importlib as _importlib
from types import ModuleType

from millrace_ipu.ipu.ops.operations import MODULES as _MADE
from millrace_ipu.ipu.ops.operations import make_modules as _make_modules
from millrace_ipu.ipu.replacements import submodule as _submodule
from millrace_ipu.ipu.replacements import unsupported_modules as _unsupported_modules

_MODULES = ("internal_ops", "pipelining_ops", *_MADE)
_make_modules(__name__)


def __getattr__(name: str) -> ModuleType:
    if name in _unsupported_modules() and name not in _MODULES:
        return _importlib.import_module(f"{__name__}.{name}")
    return _submodule(__name__, name, _MODULES)
