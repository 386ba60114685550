"""The pass that an operation belongs to, from the scopes in its name.

jit(run)/jvp(dense)/dot_general                             forward
.../transpose(jvp(dense))/dot_general                       backward
.../transpose(jvp())/cond/branch_1_fun/jvp(dense)/tanh      recomputation
.../gradient_accumulation/add                               accumulation
.../weight_update/adam/mul                                    update
"""

import re
from collections.abc import Callable, Collection, Sequence

from millrace.programs.steps.scopes import ACCUMULATION

_FORWARD = "jvp("
_PASSES = re.compile(r"transpose\(jvp\(|transpose\(|jvp\(")


def kind_finder(
    layer_of: Callable[[str], str],
    updates: Collection[str],
    default: str = "",
    repeats: bool = False,
) -> Callable[[str], str]:
    """Returns a function that finds the pass in the name of an operation.

    Args:
        layer_of: returns the layer in such a name, empty if there is none.
        updates: name scopes of the update of the weights.
        default: the pass of operations in scopes that tell none.
        repeats: whether forward operations of the program repeat those of another one.
    """

    def kind_of(op_name: str) -> str:
        """Returns a kind of `ProgramSegment`, empty if the name tells none."""
        kinds = (_kind(each.strip().split("/"), updates) for each in op_name.split(";"))
        kind = next(filter(None, kinds), "")  # XLA joins the names of what it fuses
        if not kind and op_name and layer_of(op_name):
            kind = "forward"
        if kind == "forward" and repeats:
            return "recomputation"
        return kind or (default if "/" in op_name else "")

    return kind_of


def _kind(scopes: Sequence[str], updates: Collection[str]) -> str:
    if ACCUMULATION in scopes:
        return "accumulation"
    if any(scope in updates for scope in scopes):
        return "update"
    if "rematted_computation" in scopes:
        return "recomputation"
    # The innermost transformation counts: a forward within a backward is computed again.
    passes = _PASSES.findall("/".join(scopes))
    if not passes:
        return ""
    if passes[-1] != _FORWARD:
        return "backward"
    return "forward" if set(passes) == {_FORWARD} else "recomputation"
