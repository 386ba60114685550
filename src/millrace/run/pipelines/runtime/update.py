"""One update of a pipelined model: the parts that stages run, and the moves between them.

    begin           gradients of a weight that lives elsewhere; the optimizer's scalars
    after partial   each stage's contribution to a norm, to the last stage
    after shared    the norm, to all stages
    after final     new values of a weight, to the other stages that use it

Within a process the parts of an update fetch their inputs. Between processes all values move in
these four groups, in one order.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from millrace.base.devices import DeviceGroup
from millrace.compilation.executables.executable import Executable
from millrace.run.pipelines.programs.builder import StageBuilder, replaced_by
from millrace.run.pipelines.programs.split import Arrays, Slot
from millrace.run.pipelines.programs.split_update import UpdatePart
from millrace.run.pipelines.programs.stage_taps import Bundle, bundle_of_update
from millrace.run.pipelines.programs.stage_update import contributions
from millrace.run.pipelines.runtime.links import Specs
from millrace.run.pipelines.runtime.stage_state import StageState
from millrace.run.pipelines.runtime.tasks import FindExecutable
from millrace.run.pipelines.runtime.transfer import MoveArrays, make_move, takes_part

# By slot and the stage that got them from another process; None: where they were computed.
UpdateValues = dict[tuple[Slot, int | None], jax.Array]


class _Move(NamedTuple):
    source: int  # stage
    target: int
    slots: list[Slot]
    run: MoveArrays
    specs: Specs


class UpdateMoves:
    """The moves of one update of one model."""

    def __init__(self, builder: StageBuilder, groups: Sequence[DeviceGroup]):
        self._builder, self._groups = builder, groups
        update, last = builder.stages.update, len(groups) - 1
        self._owners = {**builder.stages.split.owners, **update.owners}
        gradients = contributions(builder.stages.split)
        homes = {Slot("gradient", k): stage for k, (stage, _) in enumerate(gradients)}
        homes.update(
            (slot, stage) for stage, part in update.partial.items() for slot in part.outputs
        )
        if update.shared is not None:
            homes.update(dict.fromkeys(update.shared.outputs, last))
        self._homes = homes
        parts = [*update.partial.items(), *update.final.items()]
        if update.shared is not None:
            parts.append((last, update.shared))
        needs = [(slot, stage) for stage, part in parts for slot in part.inputs]
        tied = [
            (Slot("trainable", k), stage.index)
            for stage in builder.stages.split.stages
            for k in stage.trainable
        ]
        state = ("trainable", "optimizer", "non_trainable")
        self._begin = self._moves(n for n in needs if n[0].role in ("gradient", *state))
        self._partial = self._moves(n for n in needs if n[0].role == "partial")
        self._shared = self._moves(n for n in needs if n[0].role == "shared")
        self._tied = self._moves(tied)

    def begin(self, values: UpdateValues, state: StageState) -> None:
        """Moves gradients, and values of the state that their owners are about to replace."""
        for move in self._begin:
            arrays = None
            if self._groups[move.source].local:
                arrays = [
                    values[slot, None] if slot.role == "gradient" else jnp.copy(state[slot])
                    for slot in move.slots
                ]
            values.update(_arrived(move, arrays))

    def after_partial(self, values: UpdateValues) -> None:
        """Moves each stage's contribution to a shared value."""
        self._run(self._partial, values)

    def after_shared(self, values: UpdateValues) -> None:
        """Moves the shared values."""
        self._run(self._shared, values)

    def after_final(self, state: StageState) -> None:
        for move in self._tied:
            arrays = None
            if self._groups[move.source].local:
                # A copy: the next update donates the weight before the other process has it.
                arrays = [jnp.copy(state[slot]) for slot in move.slots]
            state.copies.update(_arrived(move, arrays))

    def _run(self, moves: list[_Move], values: UpdateValues) -> None:
        for move in moves:
            arrays = None
            if self._groups[move.source].local:
                arrays = [values[slot, None] for slot in move.slots]
            values.update(_arrived(move, arrays))

    def _moves(self, needs: Iterable[tuple[Slot, int]]) -> list[_Move]:
        """Returns the moves between processes of which this one has an end."""
        by_ends: dict[tuple[int, int], list[Slot]] = {}
        for slot, target in dict.fromkeys(needs):
            source = self._homes.get(slot, self._owners.get(slot, target))
            ends = self._groups[source], self._groups[target]
            if ends[0] != ends[1] and not (ends[0].is_local and ends[1].is_local):
                by_ends.setdefault((source, target), []).append(slot)
        return [
            _Move(
                source,
                target,
                slots,
                make_move(self._groups[source], self._groups[target]),
                [self._spec(slot, target) for slot in slots],
            )
            for (source, target), slots in sorted(by_ends.items())
            if takes_part(self._groups[source], self._groups[target])
        ]

    def _spec(self, slot: Slot, target: int) -> jax.ShapeDtypeStruct:
        spec = self._builder.spec_of(slot)
        sharding = None
        if self._builder.layouts.replicas > 1:
            sharding = self._builder.layouts.of(target, slot)
        return jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding)


def _arrived(move: _Move, arrays: Arrays | None) -> Iterator[tuple[tuple[Slot, int], jax.Array]]:
    moved = move.run(arrays, move.specs)
    if moved is not None:
        # If the other process has failed, these are errors, and must not become weights.
        for slot, array in zip(move.slots, jax.block_until_ready(moved), strict=True):
            yield (slot, move.target), array


class StageUpdate:
    """Updates the weights of each stage where they live."""

    def __init__(self, builder: StageBuilder, groups: Sequence[DeviceGroup], find: FindExecutable):
        self._builder = builder
        self._find = find
        self._update = builder.stages.update
        self._last = len(groups) - 1
        self._here = [bool(group.local) for group in groups]
        self._moves = UpdateMoves(builder, groups)
        # By name and stage, each with the slots whose memory the results take over.
        self._executables: dict[tuple[str, int], tuple[Executable, list[Slot]]] = {}
        self.tapped: list[tuple[Bundle, Arrays]] = []  # by the last update
        self._taps = {
            stage: bundle_of_update(self._update.taps, part, stage)
            for stage, part in self._update.final.items()
        }
        shared = self._update.shared is not None
        # Calls of compiled code in one update.
        self.dispatches = len(self._update.partial) + shared + len(self._update.final)

    def home_of(self, key: Hashable) -> int | None:
        """Returns the stage at which the update taps a value of one leaf; None if it does not."""
        taps = self._taps.items()
        return next((stage for stage, each in taps if each and (key, 0) in each.leaves), None)

    def run(self, state: StageState, sums: Sequence[Arrays], scale: np.float32) -> Arrays:
        """Applies the accumulated gradients, and returns arrays that are ready once it is done.

        Args:
            state: gets the new weights and optimizer state.
            sums: accumulated gradients, by stage and in the order of `Stage.trainable`; none of a
                stage in another process.
            scale: factor for all gradients.
        """
        update = self._update
        values: UpdateValues = {(Slot("scale", 0), None): cast(jax.Array, scale)}
        number = 0
        for stage, gradients in zip(self._builder.stages.split.stages, sums, strict=True):
            for position, array in enumerate(gradients):
                values[Slot("gradient", number + position), None] = array
            number += len(stage.trainable)
        self._moves.begin(values, state)
        for stage, part in update.partial.items():
            self._run("partial", stage, part, values, state)
        self._moves.after_partial(values)
        if update.shared is not None:
            self._run("shared", self._last, update.shared, values, state)
        self._moves.after_shared(values)
        final = {stage: part for stage, part in update.final.items() if self._here[stage]}
        # All inputs first: the results of a stage take over the memory of its old values.
        inputs = {stage: self._inputs(part, stage, values, state) for stage, part in final.items()}
        probes, self.tapped = [], []
        for stage, part in final.items():
            *outputs, probe = self._call("final", stage, part, inputs[stage])
            probes.append(probe)
            if (taps := self._taps[stage]) is not None:
                self.tapped.append((taps, outputs[len(part.outputs) :]))
                del outputs[len(part.outputs) :]
            for slot, value in zip(part.outputs, outputs, strict=True):
                state[slot] = value
        self._moves.after_final(state)
        state.refresh()
        return probes

    def _run(
        self, name: str, stage: int, part: UpdatePart, values: UpdateValues, state: StageState
    ) -> None:
        if self._here[stage]:
            *outputs, _ = self._call(name, stage, part, self._inputs(part, stage, values, state))
            values.update(((s, None), v) for s, v in zip(part.outputs, outputs, strict=True))

    def _inputs(
        self, part: UpdatePart, stage: int, values: UpdateValues, state: StageState
    ) -> dict[Slot, jax.Array]:
        inputs: dict[Slot, jax.Array] = {}
        for slot in part.inputs:
            if (slot, stage) in values:  # from another process
                inputs[slot] = values[slot, stage]
            elif (slot, None) not in values:
                inputs[slot] = state.at(slot, stage)
            elif slot.role == "scale":
                inputs[slot] = values[slot, None]  # a number on the host
            else:
                inputs[slot] = state.lay(values[slot, None], slot, stage)
        return inputs

    def _call(
        self, name: str, stage: int, part: UpdatePart, inputs: dict[Slot, jax.Array]
    ) -> Arrays:
        if (name, stage) not in self._executables:
            run = self._find(name, stage, lambda: self._builder.update_part(name, stage, part))
            self._executables[name, stage] = run, replaced_by(self._builder.stages.update, part)
        run, replaced = self._executables[name, stage]
        others = [value for slot, value in inputs.items() if slot not in replaced]
        return run([inputs[slot] for slot in replaced], others)
