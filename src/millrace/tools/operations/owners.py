"""The owner and the pass of an operation: a layer, the loss or the optimizer.

Names of operations are paths of name scopes, within JAX's transformations:

    jit(run)/while/body/jvp(encoder)/dense/dot_general              encoder/dense, forward
    jit(run)/while/body/transpose(jvp(encoder))/dense/dot_general   encoder/dense, backward
    .../transpose(jvp())/cond/branch_1_fun/jvp(encoder)/dense/tanh  encoder/dense, recomputation
    jit(run)/while/body/jvp(compile_loss)/mse/sub                   loss, forward
    jit(run)/while/body/weight_update/adam/mul                      Adam, update
    jit(run)/while/body/gradient_accumulation/add                   gradient accumulation

Keras opens the scopes of layers, of the loss and of the optimizer, `steps/` the others. Copies and
changes of layout have no names, nor have some convolutions: they work for the nearest operation
with an owner.
"""

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from millrace._compat.keras_steps import METRICS_SCOPE
from millrace.programs.steps.scopes import ACCUMULATION, KERAS_STEP, UPDATE
from millrace.run.memory.hlo_proto import Instruction, Module

LOSS = "compile_loss"  # Keras's scope
_TRANSFERS = """
    all-gather all-reduce all-to-all collective-broadcast collective-permute copy-start infeed
    outfeed ragged-all-to-all recv reduce-scatter send
"""
TRANSFERS = frozenset(_TRANSFERS.split())
ROLES = ("layer", "loss", "metrics", "accumulation", "optimizer", "transfer", "other")
_NEAREST = 500  # operations that are searched
_MOVES = ("bitcast", "broadcast", "copy", "transpose", "reshape", "convert")
_NUMBER = re.compile(r"_\d+$")
_FORWARD = re.compile(r"\bjvp\(")


@dataclass(frozen=True, slots=True)
class Owner:
    """For whom an operation works."""

    name: str
    role: str  # one of `ROLES`
    kind: str = ""  # "forward", "backward", "recomputation", "update" or ""


_OTHER = Owner("other", "other")


@dataclass(frozen=True, slots=True)
class ScopeNames:
    """The scopes of a program.

    Attributes:
        layer_of: returns the layer of an operation's name; see `layer_finder`.
        optimizers: names to show, by scope, without a number at its end.
        is_backward: whether forward operations of the program repeat those of another.
    """

    layer_of: Callable[[str], str]
    optimizers: Mapping[str, str]
    is_backward: bool = False

    def owner(self, op_name: str) -> Owner | None:
        """Returns the owner that an operation's name states; None if it names none."""
        for each in op_name.split(";"):  # XLA joins the names of what it fuses
            if owner := self._owner(each.strip()):
                return owner
        return None

    def _owner(self, op_name: str) -> Owner | None:
        scopes = op_name.split("/")
        if ACCUMULATION in scopes:
            return Owner("gradient accumulation", "accumulation")
        kind = self.kind(scopes)
        if not kind and (owner := self._optimizer(scopes)):
            return owner
        # Before the pass there are only JAX's scopes: a layer may be called "while", too.
        passes = [number for number, scope in enumerate(scopes) if _FORWARD.search(scope)]
        if layer := self.layer_of("/".join(scopes[passes[-1] :] if passes else scopes)):
            return Owner(layer, "layer", kind or "forward")
        if any(LOSS in scope for scope in scopes):
            return Owner("loss", "loss", kind or "forward")
        if not kind and (METRICS_SCOPE in scopes or KERAS_STEP in scopes):
            return Owner("metrics", "metrics")
        return None

    def _optimizer(self, scopes: list[str]) -> Owner | None:
        # The innermost: one that scales the loss has another inside.
        # Without Keras's number: the executable may be of an equal model that was made before.
        plain = [_NUMBER.sub("", scope) for scope in scopes]
        names = [self.optimizers[scope] for scope in plain if scope in self.optimizers]
        if names:
            return Owner(names[-1], "optimizer", "update")
        if UPDATE in scopes:
            return Owner(next(iter(self.optimizers.values()), "optimizer"), "optimizer", "update")
        return None

    def kind(self, scopes: list[str]) -> str:
        """Returns the pass; empty for what is not differentiated."""
        passes = [scope for scope in scopes if _FORWARD.search(scope)]
        if not passes:
            return ""
        has_backward = any("transpose(" in scope for scope in passes)
        if "rematted_computation" in scopes:
            return "recomputation"
        if "transpose(" in passes[-1]:
            return "backward"
        return "recomputation" if has_backward or self.is_backward else "forward"


class OperationOwners:
    """Finds the owners of a module's operations."""

    def __init__(self, module: Module, names: ScopeNames):
        self._module, self._names = module, names
        self._users: dict[int, list[int]] = {}
        self._found: dict[int, Owner] = {}
        for number, instruction in module.instructions.items():
            for operand in instruction.operands:
                self._users.setdefault(operand, []).append(number)

    def of(self, instruction: Instruction) -> Owner:
        """Returns the owner of an operation that the program runs."""
        if instruction.number not in self._found:
            self._found[instruction.number] = self._of(instruction)
        return self._found[instruction.number]

    def of_part(self, part: Instruction, whole: Instruction) -> Owner:
        """Returns the owner of an operation within a fusion."""
        return self._names.owner(part.op_name) or self.of(whole)

    def _of(self, instruction: Instruction) -> Owner:
        if instruction.opcode.removesuffix("-start").removesuffix("-done") in TRANSFERS:
            return Owner(instruction.opcode.removesuffix("-start"), "transfer")
        if owner := self._own(instruction):
            return owner
        # An operation with a name that names nobody is the program's own, such as a loop's counter.
        is_move = not instruction.op_name or instruction.opcode in _MOVES
        return (self._nearest(instruction) if is_move else None) or self._without(instruction)

    def _own(self, instruction: Instruction) -> Owner | None:
        if owner := self._names.owner(instruction.op_name):
            return owner
        if instruction.opcode != "fusion":
            return None
        owners = [
            owner
            for number in instruction.called
            for inner in self._module.computations[number].instructions
            if (owner := self._names.owner(inner.op_name))
        ]
        return owners[-1] if owners else None  # the nearest to the result

    def _nearest(self, instruction: Instruction) -> Owner | None:
        # XLA drops the names of the convolutions that make gradients of weights. They take an
        # activation, of forward, and a cotangent, which is their own layer's.
        if instruction.opcode not in _MOVES:
            for operand in instruction.operands:
                owner = self._search(operand, self._operands)
                if owner is not None and owner.kind == "backward":
                    return owner
        return self._search(instruction.number, self._neighbours)

    def _operands(self, number: int) -> Sequence[int]:
        return self._module.instructions[number].operands

    def _neighbours(self, number: int) -> Sequence[int]:
        return *self._operands(number), *self._users.get(number, ())

    def _search(self, number: int, next_to: Callable[[int], Sequence[int]]) -> Owner | None:
        """Returns the owner of an operation, or else of the nearest one that has an owner."""
        instructions = self._module.instructions
        if owner := self._own(instructions[number]):
            return owner
        seen, queue = {number}, deque([number])
        while queue and len(seen) < _NEAREST:
            for other in next_to(queue.popleft()):
                if other in seen:
                    continue
                if owner := self._own(instructions[other]):
                    return owner
                seen.add(other)
                queue.append(other)
        return None

    def _without(self, instruction: Instruction) -> Owner:
        kind = self._names.kind(instruction.op_name.split("/"))
        return Owner("other", "other", kind) if kind else _OTHER
