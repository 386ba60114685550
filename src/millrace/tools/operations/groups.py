"""The operations of an executable, added up by owner and pass."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import jax
import keras

from millrace._compat.jax_executables import module_proto
from millrace._compat.keras_layers import layer_names
from millrace._compat.keras_optimizers import wrapped_chain
from millrace.base.records.operations import OperationGroup
from millrace.compilation.executables.executable import Executable, compiled_of, renames_of
from millrace.run.memory.hlo_proto import Instruction, Module, read_module
from millrace.run.memory.owners import layer_finder
from millrace.tools.operations.count import CountedOperation, OperationCounter
from millrace.tools.operations.owners import ROLES, OperationOwners, Owner, ScopeNames

_PASSES = ("forward", "recomputation", "backward", "update", "")
# Scopes that JAX opens; every other one is the user's, or Keras's.
_OF_JAX = re.compile(
    r"^(while|body|cond|closed_call|checkpoint|shard_map|branch_\d+_fun|pjit|scan)$"
)


@dataclass(frozen=True, slots=True)
class ProgramCount:
    """The counted operations of an executable."""

    name: str  # of XLA's module, by which a profiler's events refer to it
    groups: tuple[OperationGroup, ...]
    owners: Mapping[str, Owner]  # by the name of the instruction, of those that the program runs
    unknown_loops: int  # whose bodies count once
    runs: int  # of operations, in one call


def program_of(executable: Executable) -> Module | None:
    """Returns the program of an executable; None if that does not show it."""
    compiled = compiled_of(executable)
    if not isinstance(compiled, jax.stages.Compiled):
        return None
    return read_module(module_proto(compiled))


def count_operations(
    module: Module, executable: Executable, model: keras.Model | None, is_backward: bool = False
) -> ProgramCount:
    """Counts the operations of an executable.

    Args:
        module: its program.
        executable: as the compile log shows it.
        model: whose layers the program calls; None for a function, whose scopes are the owners.
        is_backward: whether the program is the backward pass of a stage.
    """
    names = ScopeNames(_layer_of(executable, model), optimizer_scopes(model), is_backward)
    owners = OperationOwners(module, names)
    counter = OperationCounter(module)
    operations = counter.operations()
    groups = _groups(operations, owners)
    found = {each.instruction.name: owners.of(each.instruction) for each in operations}
    found |= _callers(module, owners)
    runs = sum(each.times for each in operations)
    return ProgramCount(module.name, groups, found, counter.unknown_loops, runs)


def _callers(module: Module, owners: OperationOwners) -> dict[str, Owner]:
    """Returns the owners of loops and calls, whose own time is that of counting iterations."""
    return {
        each.name: owners.of(each)
        for number in module.schedule
        for each in module.computations[number].instructions
        if each.opcode in ("while", "call", "conditional")
    }


def _layer_of(executable: Executable, model: keras.Model | None) -> Callable[[str], str]:
    if model is None:
        return outermost_scope
    return layer_finder(layer_names(model), renames_of(executable))


def outermost_scope(op_name: str) -> str:
    """Returns `dense` of `jit(f)/while/body/transpose(jvp(dense))/relu/max`; empty without."""
    for scope in op_name.split(";")[0].split("/")[:-1]:
        name = scope.strip()
        is_call = False
        while match := re.match(r"^([\w-]+)\((.*)\)$", name):
            is_call |= match[1] in ("jit", "pjit", "vmap")
            name = match[2]
        if name and not is_call and not _OF_JAX.match(name):
            return name
    return ""


def optimizer_scopes(model: keras.Model | None) -> dict[str, str]:
    """Returns the names to show of optimizers, by the scopes that Keras opens for them."""
    scopes: dict[str, str] = {}
    if model is None:  # a function's, which Keras has named after their classes
        for name in dir(keras.optimizers):
            kind = getattr(keras.optimizers, name)
            if isinstance(kind, type) and issubclass(kind, keras.optimizers.Optimizer):
                scopes |= {name: name, name.lower(): name}
        return scopes
    for optimizer in wrapped_chain(getattr(model, "optimizer", None)):
        scopes[re.sub(r"_\d+$", "", optimizer.name)] = type(optimizer).__name__
    return scopes


class _Sum:
    def __init__(self) -> None:
        self.operations, self.flops, self.nbytes = 0, 0.0, 0.0


def _groups(
    operations: Iterable[CountedOperation], owners: OperationOwners
) -> tuple[OperationGroup, ...]:
    sums: dict[Owner, _Sum] = {}

    def sum_of(owner: Owner) -> _Sum:
        return sums.setdefault(owner, _Sum())

    for operation in operations:
        whole: Instruction = operation.instruction
        own = sum_of(owners.of(whole))
        own.operations += 1
        own.nbytes += operation.nbytes * operation.times
        for part, flops in operation.flops:
            sum_of(owners.of_part(part, whole)).flops += flops * operation.times
    ordered = sorted(sums, key=lambda each: (ROLES.index(each.role), _PASSES.index(each.kind)))
    return tuple(
        OperationGroup(
            owner=owner.name,
            role=owner.role,
            kind=owner.kind,
            operations=sums[owner].operations,
            flops=sums[owner].flops,
            bytes=sums[owner].nbytes,
        )
        for owner in ordered
    )
