"""Automatic sharding: its scope is taken without effect, since a replica computes on one device."""

from typing import Any

from millrace_ipu.ipu.replacements import IPU as _IPU
from millrace_ipu.ipu.replacements import other_name as _other_name
from millrace_ipu.ipu.scopes import without_effect as _without_effect

ipu_autoshard = _without_effect(
    "ipu_autoshard", f"To spread a model over devices: {_IPU['ipu.autoshard']}."
)


def __getattr__(name: str) -> Any:
    return _other_name(__name__, name)
