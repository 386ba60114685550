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
from millrace.run.pipelines.programs.builder import UPDATE_PARTS, StageBuilder, arguments_of
from millrace.run.pipelines.programs.split import Arrays, Slot
from millrace.run.pipelines.programs.split_update import UpdatePart
from millrace.run.pipelines.programs.stage_taps import Bundle, bundle_of
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
        update = builder.stages.update
        self._owners = {**builder.stages.split.owners, **update.owners}
        gradients = contributions(builder.stages.split)
        homes = {Slot("gradient", k): stage for k, (stage, _) in enumerate(gradients)}
        homes.update(
            (slot, stage)
            for parts in (update.partial, update.shared)
            for stage, part in parts.items()
            for slot in part.outputs
        )
        self._homes = homes
        needs: dict[str, list[tuple[Slot, int]]] = {"begin": [], "partial": [], "shared": []}
        for (_, stage), part in update.parts.items():
            for slot in part.inputs:
                needs[slot.role if slot.role in needs else "begin"].append((slot, stage))
        needs["final"] = [
            (Slot("trainable", k), stage.index)
            for stage in builder.stages.split.stages
            for k in stage.trainable
        ]
        self._moves = {moment: self._between_processes(each) for moment, each in needs.items()}

    def run(
        self, moment: str, values: UpdateValues, state: StageState
    ) -> Iterator[tuple[tuple[Slot, int], jax.Array]]:
        """Moves the values that are due, and yields those that arrive, by slot and stage.

        Args:
            moment: "begin", or the name of the parts that have run.
            values: of the update.
            state: of the stages.
        """
        for move in self._moves[moment]:
            arrays = None
            if self._groups[move.source].local:
                # Of the state copies: it is donated before the other process has it.
                arrays = [
                    values[slot, None] if (slot, None) in values else jnp.copy(state[slot])
                    for slot in move.slots
                ]
            moved = move.run(arrays, move.specs)
            if moved is not None:
                # If the other process has failed, these are errors, and must not become weights.
                for slot, array in zip(move.slots, jax.block_until_ready(moved), strict=True):
                    yield (slot, move.target), array

    def _between_processes(self, needs: Iterable[tuple[Slot, int]]) -> list[_Move]:
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


class StageUpdate:
    """Updates the weights of each stage where they live."""

    def __init__(self, builder: StageBuilder, groups: Sequence[DeviceGroup], find: FindExecutable):
        self._builder = builder
        self._find = find
        self._update = builder.stages.update
        self._parts: dict[str, dict[int, UpdatePart]] = {name: {} for name in UPDATE_PARTS}
        for (name, stage), part in self._update.parts.items():
            if groups[stage].local:
                self._parts[name][stage] = part
        self._moves = UpdateMoves(builder, groups)
        # By name and stage, the slots whose memory the results take over, and others.
        self._slots = {
            key: arguments_of(self._update, part) for key, part in self._update.parts.items()
        }
        self.tapped: list[tuple[Bundle, Arrays]] = []  # by the last update
        self._taps = {
            stage: bundle_of(self._update.taps, part.taps, stage)
            for stage, part in self._update.final.items()
        }
        self.dispatches = len(self._update.parts)  # calls of compiled code in one update

    def home_of(self, key: Hashable) -> int | None:
        """Returns the stage at which the update taps a value of one leaf; None if it does not."""
        taps = self._taps.items()
        return next((stage for stage, each in taps if each and (key, 0) in each.leaves), None)

    def run(self, state: StageState, sums: Sequence[Arrays], scale: np.float32) -> Arrays:
        """Applies the accumulated gradients, and returns arrays that are ready once it is done.

        Args:
            state: gets the new weights and optimizer state.
            sums: accumulated gradients, by stage and in the order of `Stage.accumulated`; none of a
                stage in another process.
            scale: factor for all gradients.
        """
        values: UpdateValues = {(Slot("scale", 0), None): cast(jax.Array, scale)}
        number = 0
        for stage, gradients in zip(self._builder.stages.split.stages, sums, strict=True):
            for position, array in enumerate(gradients):
                values[Slot("gradient", number + position), None] = array
            number += len(stage.accumulated)
        values.update(self._moves.run("begin", values, state))
        probes, self.tapped = [], []
        for name in UPDATE_PARTS:
            probes = self._run(name, values, state)
            arrived = state.copies if name == "final" else values
            arrived.update(self._moves.run(name, values, state))
        state.refresh()
        return probes

    def _run(self, name: str, values: UpdateValues, state: StageState) -> Arrays:
        """Runs the parts of a name, and returns arrays that are ready once they have run."""
        parts = self._parts[name]
        # All inputs first: the results of a stage take over the memory of its old values.
        inputs = {stage: self._inputs(part, stage, values, state) for stage, part in parts.items()}
        probes: Arrays = []
        for stage, part in parts.items():
            (replaced, others), of = self._slots[name, stage], inputs[stage]
            run = self._find(name, stage)
            *outputs, probe = run([of[slot] for slot in replaced], [of[slot] for slot in others])
            probes.append(probe)
            if name == "final" and (taps := self._taps[stage]) is not None:
                self.tapped.append((taps, outputs[len(part.outputs) :]))
            for slot, value in zip(part.outputs, outputs, strict=False):  # tapped values follow
                if name == "final":
                    state[slot] = value
                else:
                    values[slot, None] = value
        return probes

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
