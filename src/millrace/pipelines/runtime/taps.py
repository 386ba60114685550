"""What the stages of a pipeline tapped, as parts like those of a model in one piece.

    forward 0, forward 1, ...  backward 1, backward 0   ->  a part for each micro-batch
    final 0, final 1, ...                               ->  the updates of the last part

A value whose leaves come from several stages is whole again here. In a process that has no device
of a stage there is nothing of what that stage taps, and no value that has leaves from it.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from millrace.compiled_loop.result import CallResult, Halted, TapSink
from millrace.devices import DeviceGroup
from millrace.errors import TapError
from millrace.pipelines.programs.builder import StageBuilder
from millrace.pipelines.programs.stage_taps import HALTED, Bundle, LossScale
from millrace.pipelines.runtime.buffers import Buffers
from millrace.pipelines.runtime.changing_state import ChangingState
from millrace.pipelines.runtime.micro_batches import MicroBatch, Shape
from millrace.pipelines.runtime.stage_state import StageState
from millrace.pipelines.runtime.transfer import ToAll
from millrace.plan import Mode, Plan
from millrace.records.tensors import COUNTS
from millrace.steps.state import State
from millrace.taps.entries import Taps
from millrace.taps.taps import Tapped
from millrace.taps.tensors import Rows


class TapParts:
    """Makes the parts of an execution's taps, and says where it has to be halted."""

    def __init__(self, plan: Plan, groups: Sequence[DeviceGroup], outlet: TapSink):
        """Makes none yet.

        Args:
            plan: of the mode.
            groups: of each stage.
            outlet: takes the parts of each update.
        """
        self._outlet = outlet
        self._replicas, self._groups = plan.replicas, groups
        self._trains = plan.mode is Mode.TRAIN
        self._every = plan.taps.every if self._trains else 1
        self._stops = self._trains and plan.taps.stops
        self._count = UpdateCount()
        self._to_all: dict[int, ToAll] = {}  # by the stage that a flag is from
        self._nothing: dict[tuple[int, ...], Any] = {}  # by shape
        self._done = 0  # steps of a running execution
        self.halted: Halted | None = None  # the update before which the execution ended

    def forget(self) -> None:
        """Forgets the execution before."""
        self._done, self.halted = 0, None

    def begin(self, state: State, shape: Shape) -> None:
        """Takes note of the state that an execution begins with."""
        if self._every > 1:
            self._count.begin(state[2][shape.builder.stages.taps.iterations])

    def end(self, state: State, shape: Shape) -> None:
        """Takes note of the state that an execution has left."""
        if self._every > 1:
            self._count.end(state[2][shape.builder.stages.taps.iterations])

    def before(self, state: StageState, shape: Shape) -> ChangingState | None:
        """Returns what brings a state back to where it is now, if the update may be halted."""
        return ChangingState(state, shape.builder) if self._stops else None

    def add(self, micro_batches: Sequence[MicroBatch], buffers: Buffers) -> bool:
        """Adds what the tasks of an update have tapped, and the update itself.

        Returns:
            Whether the update was not applied. Where that may be, this waits for it.
        """
        update = micro_batches[0].shape.update
        updates = Tapped() if update is None else gathered(update.tapped)
        halted = self._flag(micro_batches[0].shape, updates) if self._stops else None
        steps = self._steps(micro_batches, buffers, updates)
        updates = _for_others(updates)
        if self._every > 1:
            if self._count.number % self._every:
                steps, updates = list(map(self._blank, steps)), self._blank(updates)
            self._count.number += not halted
        if halted:
            batches = tuple(
                batch for each in micro_batches for batch in each.batches(self._replicas)
            )
            self.halted = Halted(batches, self._done)
        self._done += sum(each.steps for each in micro_batches)
        if any(steps):
            made = [
                CallResult(None, each.steps, self._replicas, each.first, Taps(steps=tapped))
                for each, tapped in zip(micro_batches, steps, strict=True)
            ]
        elif updates or halted is not None:  # nothing that tells the micro-batches apart
            made = [CallResult(None, sum(each.steps for each in micro_batches), self._replicas)]
        else:
            return False
        if self._trains:
            taps = made[-1].taps._replace(updates=updates, halted=halted)
            made[-1] = made[-1]._replace(taps=taps, updates=1)
        self._outlet(made)
        return bool(halted)

    def _steps(
        self, micro_batches: Sequence[MicroBatch], buffers: Buffers, updates: Tapped
    ) -> list[Tapped]:
        """Returns what was tapped of each micro-batch."""
        scales = {key.stage: value for key, value in updates.items() if isinstance(key, LossScale)}
        made: list[list[tuple[Bundle, list[Any]]]] = [[] for _ in micro_batches]
        for number, bundle, arrays in buffers.tapped:
            if bundle.trace in scales and bundle.rows is not None:  # statistics of gradients
                arrays[0] = _divided(arrays[0], scales[bundle.trace])
            made[number].append((bundle, arrays))
        return list(map(gathered, made))

    def _flag(self, shape: Shape, updates: Tapped) -> np.bool | None:
        """Returns whether an update was not applied, in all processes; None if none looks."""
        stage = shape.update.home_of(HALTED) if shape.update is not None else None
        if stage is None:
            return None
        flags = [updates[HALTED]] if HALTED in updates.keys else None
        if any(not group.is_local for group in self._groups):
            if stage not in self._to_all:
                self._to_all[stage] = ToAll(self._groups[stage], self._groups)
            flags = self._to_all[stage].share(flags, [jax.ShapeDtypeStruct((1,), jnp.bool_)])
        return np.asarray((flags or [])[0])[0]

    def _blank(self, tapped: Tapped) -> Tapped:
        """Returns taps with the statistics of an update that nobody wants to look at.

        They are computed all the same: only the host knows which update it is.
        """
        values = [
            self._no_statistics(value.shape) if isinstance(key, Rows) else value
            for key, value in tapped.items()
        ]
        return Tapped(tapped.keys, tuple(values))

    def _no_statistics(self, shape: tuple[int, ...]) -> Any:
        if shape not in self._nothing:
            values = np.full(shape, np.nan, np.float32)
            values[..., COUNTS] = -1.0  # a count that no tensor has, as in tensor_taps
            self._nothing[shape] = jnp.asarray(values)
        return self._nothing[shape]


class UpdateCount:
    """Which update runs next, without waiting for the device, which counts them too.

    An update that the optimizer itself skips, as loss scaling may, is one here and none there:
    until the count is read again, from values that were set from outside.
    """

    def __init__(self) -> None:
        self._known: tuple[Any, int] = (None, 0)
        self.number = 0

    def begin(self, iterations: Any) -> None:
        """Begins at the count in a state."""
        known, self.number = self._known
        if iterations is not known:
            whole = getattr(iterations, "is_fully_addressable", True)
            self.number = int(np.asarray(iterations if whole else iterations.addressable_data(0)))

    def end(self, iterations: Any) -> None:
        """Takes note of the value that stands for the count."""
        self._known = iterations, self.number


def check_queues(builder: StageBuilder) -> None:
    """Refuses queues whose values cannot be put together.

    Raises:
        TapError: if one takes values of a layer and of gradients, or of the gradients of several
            stages which are no dicts, or dicts with the same key.
    """
    keys: dict[Hashable, dict[int, Sequence[Any] | None]] = {}
    for index in range(len(builder.stages.split.stages)):
        bundle = builder.stages.taps.backward(index)
        if bundle is None:
            continue
        for key, _ in bundle.leaves:
            tree = bundle.trees[key]
            value = jax.tree.unflatten(tree, range(tree.num_leaves))
            names = tuple(value) if isinstance(value, OrderedDict) else None
            keys.setdefault(key, {})[index] = names
    for key, stages in keys.items():
        if key in builder.stages.split.taps.keys:
            raise TapError(
                f"{key!r} takes one value of each micro-batch, and got one from a layer and one "
                "from tap_micro_gradients() of the optimizer. Use a queue for each."
            )
        every = [name for names in stages.values() for name in names or ()]
        twice = sorted({name for name in every if every.count(name) > 1})
        if len(stages) > 1 and (twice or None in stages.values()):
            reason = f"dicts that all have {twice}" if twice else "values that are no dicts"
            raise TapError(
                f"{key!r} got {reason} from tap_micro_gradients(), which a pipeline calls at each "
                f"stage with the gradients of that stage, here at stages {sorted(stages)}. Enqueue "
                "a dict with an entry for each variable, and a variable that several stages use "
                "when the optimizer applies its gradient, where it is one: before_apply."
            )


def gathered(made: Iterable[tuple[Bundle, list[Any]]]) -> Tapped:
    """Returns what several programs have tapped: statistics by stage, and whole values."""
    keys: list[Any] = []
    values: list[Any] = []
    found: dict[Hashable, dict[int | None, tuple[Any, dict[int, Any]]]] = {}
    for bundle, arrays in sorted(made, key=lambda each: each[0].stage):
        if bundle.rows is not None:
            keys.append(bundle.rows)
            values.append(arrays[0])
        leaves = arrays[len(arrays) - len(bundle.leaves) :]
        for (key, place), array in zip(bundle.leaves, leaves, strict=True):
            traces = found.setdefault(key, {})
            traces.setdefault(bundle.trace, (bundle.trees[key], {}))[1][place] = array
    for key, traces in found.items():
        whole = [
            jax.tree.unflatten(tree, [leaves[place] for place in range(tree.num_leaves)])
            for tree, leaves in traces.values()
            if len(leaves) == tree.num_leaves
        ]
        if whole:
            keys.append(key)
            values.append(_merged(whole))
    return Tapped(tuple(keys), tuple(values))


def _merged(parts: list[Any]) -> Any:
    """Returns the dicts that the stages enqueued as one: the last stage's first, as backward runs.

    `check_queues` has seen to it that they are dicts.
    """
    if len(parts) == 1:
        return parts[0]
    return OrderedDict(item for part in reversed(parts) for item in part.items())


def _for_others(tapped: Tapped) -> Tapped:
    """Returns taps without those that only this file reads."""
    kept = [
        (key, value)
        for key, value in tapped.items()
        if key != HALTED and not isinstance(key, LossScale)
    ]
    return Tapped(tuple(key for key, _ in kept), tuple(value for _, value in kept))


@jax.jit
def _divided(rows: jax.Array, scale: jax.Array) -> jax.Array:
    return rows.at[..., :5].divide(scale[0])  # all but shares and counts
