"""Findings for arguments of the methods that a scope adds to models.

model.set_pipelining_options(gradient_accumulation_count=8)    ..._steps_per_replica=8
"""

import ast
import inspect

from millrace_ipu.ipu.keras.extensions import arguments
from millrace_ipu.ipu.keras.extensions.setters import SETTERS
from millrace_ipu.ipu.keras.extensions.stages import SEQUENTIAL_METHODS, STAGE_METHODS
from millrace_ipu.porting.findings.arguments import rename
from millrace_ipu.porting.findings.finding import Finding
from millrace_ipu.porting.findings.near_names import nearest

_OTHERS = {
    "set_gradient_accumulation_options": (arguments.ACCUMULATION, arguments.ACCUMULATION_REASONS),
    "set_pipelining_options": (arguments.PIPELINING, arguments.PIPELINING_REASONS),
    "set_infeed_queue_options": ((), arguments.INFEED_REASONS),
    "set_outfeed_queue_options": ((), arguments.OUTFEED_REASONS),
}
_RENAMED = {"gradient_accumulation_count": "gradient_accumulation_steps_per_replica"}


_SETTERS = {setter.__name__: setter for setter in SETTERS}


def _names(method: str) -> frozenset[str]:
    """Returns the arguments of a setter; `*` stands for any."""
    parameters = [*inspect.signature(_SETTERS[method]).parameters.values()][1:]
    takes_others = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    others, _ = _OTHERS.get(method, ((), {}))
    unlisted = {"*"} if takes_others and not others else set()
    return frozenset({*(each.name for each in parameters), *others, *unlisted})


# All methods that a scope adds to a model.
ATTACHED = frozenset(each.__name__ for each in (*SETTERS, *STAGE_METHODS, *SEQUENTIAL_METHODS)) | {
    "precompile",
    "set_recomputation_options",
}
SETTER_ARGUMENTS = {method: _names(method) for method in _SETTERS}


def of_setter(call: ast.Call, method: str) -> list[Finding]:
    """Returns the findings of a call of a setter.

    Args:
        call: the call.
        method: the setter: one of `SETTER_ARGUMENTS`.
    """
    taken = SETTER_ARGUMENTS[method]
    _, reasons = _OTHERS.get(method, ((), {}))
    findings: list[Finding] = []
    for keyword in call.keywords:
        name = keyword.arg
        if name is None or name in taken or "*" in taken:
            continue
        new = _RENAMED.get(name)
        near = nearest(name, sorted(taken))
        instead = f"{new or near}=" if new or near else reasons.get(name)
        instead = instead or f"leave it out: it takes {', '.join(sorted(taken))}"
        edits = () if new is None else (rename(keyword, new),)
        what = f"{name}= of .{method}()"
        findings.append(Finding(keyword.value.lineno, what, instead, edits=edits))
    return findings
