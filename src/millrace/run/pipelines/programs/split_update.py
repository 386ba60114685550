"""The update of all weights, cut so that each weight is updated where it lives.

    partial, at each stage     gradients                     -> its contribution to a norm, say
    shared, at the last stage  the contributions             -> the norm
    final, at each stage       gradients, weights, the norm  -> weights, optimizer state

The first two exist only where an optimizer compares gradients of several stages: to clip by their
global norm, or to look for infinities in all of them. Only such scalars pass between stages.
All parts are cut out of one traced update of all weights, so every optimizer works unchanged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jax.extend.core import Literal

from millrace._compat.jaxpr import Graph, Var, inlined, is_literal, pruned, used, variables
from millrace.programs.taps.taps import Tapped
from millrace.run.pipelines.programs.split import NO_TAPPED, Slot


@dataclass(frozen=True, slots=True)
class UpdatePart:
    """The part of an update that one stage runs."""

    graph: Graph
    inputs: tuple[Slot, ...]  # "trainable", "optimizer", "gradient", "scale"; "partial", "shared"
    outputs: tuple[Slot, ...]  # "trainable", "optimizer"; "partial", "shared"
    taps: tuple[int, ...] = ()  # leaves of the update's tapped values, after the outputs


@dataclass(frozen=True, slots=True)
class SplitUpdate:
    """An update cut into parts."""

    partial: Mapping[int, UpdatePart]  # by stage, where there is one
    shared: Mapping[int, UpdatePart]  # of the last stage, where there is one
    final: Mapping[int, UpdatePart]  # by stage
    owners: Mapping[Slot, int]  # the stage at which a value of the optimizer lives
    taps: Tapped = NO_TAPPED  # specs of the values that the update taps

    @property
    def parts(self) -> dict[tuple[str, int], UpdatePart]:
        """All parts in their order, by name and stage."""
        of_names = {"partial": self.partial, "shared": self.shared, "final": self.final}
        return {
            (name, stage): part for name, parts in of_names.items() for stage, part in parts.items()
        }


def split_update(
    graph: Graph,
    inputs: Sequence[Slot],
    outputs: Sequence[Slot],
    homes: Mapping[Slot, int],
    last: int,
) -> SplitUpdate:
    """Cuts an update.

    Args:
        graph: the traced update of all weights.
        inputs: the slot of each input: "trainable", "optimizer", "gradient" or "scale".
        outputs: the slot of each output: "trainable", "optimizer" or, after these, "tap".
        homes: the stage of every weight and gradient, and of taps that belong to one stage.
        last: the last stage, at which the scalars of the optimizer live.
    """
    slots = dict(zip(graph.invars, inputs, strict=True))
    graph = inlined(graph)
    results = dict(zip(outputs, graph.outvars, strict=True))
    owners = _optimizer_owners(graph, slots, results, homes, last)
    stage_of = {
        var: homes[slot] if slot in homes else owners[slot]
        for var, slot in slots.items()
        if slot in homes or (slot in owners and var.aval.ndim)
    }
    flow = _UpdateFlow(graph, stage_of)
    names = {**slots}
    names.update((var, Slot("partial", k)) for k, var in enumerate(flow.partial))
    names.update((var, Slot("shared", k)) for k, var in enumerate(flow.shared))
    partial = {
        stage: _part(graph, [var for var, s in flow.partial.items() if s == stage], names)
        for stage in sorted(set(flow.partial.values()))
    }
    shared: dict[int, UpdatePart] = {}
    if flow.shared:
        shared[last] = _part(graph, flow.shared, names, tuple(flow.partial))
    final: dict[int, UpdatePart] = {}
    where = {**owners, **_tap_homes(graph, results, stage_of, flow.shared, last), **homes}
    for stage in range(last + 1):
        own = [slot for slot in results if where[slot] == stage]
        if own:
            outvars = [results[slot] for slot in own]
            part = _part(graph, outvars, names, flow.shared)
            new = tuple(slot for slot in own if slot.role != "tap")
            taps = tuple(slot.index for slot in own if slot.role == "tap")
            final[stage] = UpdatePart(part.graph, part.inputs, new, taps)
    return SplitUpdate(partial, shared, final, owners)


def _optimizer_owners(
    graph: Graph,
    slots: Mapping[Var, Slot],
    results: Mapping[Slot, Var | Literal],
    homes: Mapping[Slot, int],
    last: int,
) -> dict[Slot, int]:
    """Returns the stage of each value of the optimizer: that of the weights it belongs to."""
    owners: dict[Slot, int] = {}
    for stage in range(last + 1):
        outvars = [var for slot, var in results.items() if homes.get(slot) == stage]
        part = pruned(used(graph, outvars))
        for var in part.invars:
            if slots[var].role == "optimizer" and var.aval.ndim:
                owners.setdefault(slots[var], stage)
    for var, slot in slots.items():
        if slot.role == "optimizer" and slot not in owners:
            owners[slot] = last
            if var.aval.ndim:  # its weight does not read it: it lives with its gradient
                part = pruned(used(graph, [results[slot]]))
                stages = [homes[slots[v]] for v in part.invars if slots[v] in homes]
                owners[slot] = min(stages, default=last)
    return owners


def _tap_homes(
    graph: Graph,
    results: Mapping[Slot, Var | Literal],
    stage_of: Mapping[Var, int],
    shared: Sequence[Var],
    last: int,
) -> dict[Slot, int]:
    """Returns the stage that computes each tap: the one whose values it takes, else the last.

    Its other inputs, such as a norm of all gradients, are shared with that stage anyway.
    """
    tap_homes: dict[Slot, int] = {}
    for slot, var in results.items():
        if slot.role == "tap":
            taken = pruned(used(graph, [var], shared), shared).invars
            stages = {stage_of[v] for v in taken if v in stage_of}
            tap_homes[slot] = stages.pop() if len(stages) == 1 else last
    return tap_homes


class _UpdateFlow:
    """The stages that each value of an update depends on.

    A value is large if it is a weight, a gradient or an optimizer slot, or has axes and is computed
    from such values. `shared` are the scalars (and stacks of them) of several stages that large
    values depend on; `partial` are the contributions of single stages to these.
    """

    def __init__(self, graph: Graph, stage_of: Mapping[Var, int]):
        self._depends = {var: frozenset({stage}) for var, stage in stage_of.items()}
        self._large = set(stage_of)
        reduced: dict[Var, int] = {}  # small values computed from large ones of one stage
        wanted: dict[Var, None] = {}
        for equation in graph.equations:
            inputs = list(variables(equation.invars))
            large = [var for var in inputs if var in self._large]
            homes = frozenset().union(*(self._depends[var] for var in large))
            depends = frozenset().union(*(self._of(var) for var in inputs))
            makes_large = bool(large) and any(out.aval.ndim for out in equation.outvars)
            if makes_large:
                small = [var for var in inputs if var not in self._large]
                foreign = [var for var in small if self._of(var) - homes or len(homes) > 1]
                wanted.update((var, None) for var in foreign if self._of(var))
            for out in equation.outvars:
                if large and out.aval.ndim:
                    self._large.add(out)
                    self._depends[out] = homes
                else:
                    self._depends[out] = depends
                    if len(homes) == 1:
                        reduced[out] = next(iter(homes))
        wanted.update(
            (var, None)
            for var in variables(graph.outvars)
            if var not in self._large and len(self._of(var)) > 1
        )
        self.shared = list(wanted)
        slice_ = used(graph, self.shared, reduced)
        self.partial = {var: reduced[var] for var in slice_.invars if var in reduced}
        if any(self._needs(graph, var) for var in self.partial):
            # A contribution of one stage takes a shared value, which would need a second round.
            # Instead, each final part computes everything from the gradients of all stages.
            self.shared, self.partial = [], {}

    def _of(self, var: Var) -> frozenset[int]:
        return self._depends.get(var, frozenset())

    def _needs(self, graph: Graph, partial: Var) -> bool:
        return len({s for v in used(graph, [partial]).invars for s in self._of(v)}) > 1


def _part(
    graph: Graph,
    outvars: Sequence[Var | Literal],
    names: Mapping[Var, Slot],
    inputs: Sequence[Var] = (),
) -> UpdatePart:
    part = pruned(used(graph, outvars, inputs))
    outputs = tuple(names[var] for var in outvars if not is_literal(var) and var in names)
    return UpdatePart(part, tuple(names[var] for var in part.invars), outputs)
