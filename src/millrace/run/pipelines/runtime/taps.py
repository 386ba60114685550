"""The values that the stages of a pipeline tap, as call results like those of a model in one piece.

    forward 0, forward 1, ...  backward 1, backward 0   ->  a call result for each micro-batch
    final 0, final 1, ...                               ->  the updates of the last of these

A value whose leaves come from several stages is put together here. A process that has no device of
a stage gets none of the stage's tapped values, and no value with a leaf from that stage.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np

from millrace.base.devices import DeviceGroup
from millrace.base.pytrees import ArrayTree
from millrace.base.records.tensors import COUNTS
from millrace.errors import TapError
from millrace.programs.plan import Mode, Plan
from millrace.programs.steps.state import State
from millrace.programs.steps.tapped_step import update_count
from millrace.programs.taps.entries import CallResult, Taps
from millrace.programs.taps.taps import Tapped
from millrace.programs.taps.tensors import Rows
from millrace.run.compiled_loop.protocol import Halted, TapSink
from millrace.run.pipelines.programs.builder import StageBuilder
from millrace.run.pipelines.programs.split import Arrays
from millrace.run.pipelines.programs.stage_taps import HALTED, Bundle, LossScale
from millrace.run.pipelines.runtime.buffers import Buffers
from millrace.run.pipelines.runtime.micro_batches import MicroBatch, Shape
from millrace.run.pipelines.runtime.stage_state import StageState
from millrace.run.pipelines.runtime.transfer import ToAll


class TapCollector:
    """Collects the taps of an execution, and says whether it has to be halted."""

    def __init__(self, plan: Plan, groups: Sequence[DeviceGroup], tap_sink: TapSink):
        """Starts without an execution.

        Args:
            plan: of the mode.
            groups: of each stage.
            tap_sink: takes the call results of each update.
        """
        self._tap_sink = tap_sink
        self._replicas, self._groups = plan.replicas, groups
        self._trains = plan.mode is Mode.TRAIN
        self._every = plan.taps.every if self._trains else 1
        self._stops = self._trains and plan.taps.stops
        self._count = UpdateCount()
        self._to_all = ToAll(groups)
        self._no_statistics: dict[tuple[int, ...], jax.Array] = {}  # by shape
        self._done = 0  # steps of the running execution so far
        self.halted: Halted | None = None  # the update before which the execution ended

    def forget(self) -> None:
        """Forgets the previous execution."""
        self._done, self.halted = 0, None

    def begin(self, state: State, shape: Shape) -> None:
        """Reads the update count from the state with which an execution begins."""
        if self._every > 1:
            self._count.begin(state.optimizer[update_count(shape.builder.stages.model.optimizer)])

    def end(self, state: State, shape: Shape) -> None:
        """Remembers which value of the state is the update count after an execution."""
        if self._every > 1:
            self._count.end(state.optimizer[update_count(shape.builder.stages.model.optimizer)])

    def before(self, state: StageState) -> Callable[[], None] | None:
        """Saves the changing state before an update that may be halted; returns how to restore."""
        return state.saved() if self._stops else None

    def add(self, micro_batches: Sequence[MicroBatch], buffers: Buffers) -> bool:
        """Adds the tapped values of an update and of its tasks.

        Returns:
            Whether the update was halted. If it may be, this call waits for the update.
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
            results = [
                CallResult(None, each.steps, self._replicas, each.first, Taps(steps=tapped))
                for each, tapped in zip(micro_batches, steps, strict=True)
            ]
        elif updates or halted is not None:  # one result, as the micro-batches have tapped nothing
            results = [CallResult(None, sum(each.steps for each in micro_batches), self._replicas)]
        else:
            return False
        if self._trains:
            taps = results[-1].taps._replace(updates=updates, halted=halted)
            results[-1] = results[-1]._replace(taps=taps, updates=1)
        self._tap_sink(results)
        return bool(halted)

    def _steps(
        self, micro_batches: Sequence[MicroBatch], buffers: Buffers, updates: Tapped
    ) -> list[Tapped]:
        """Returns the tapped values of each micro-batch."""
        scales = {key.stage: value for key, value in updates.items() if isinstance(key, LossScale)}
        tapped: list[list[tuple[Bundle, Arrays]]] = [[] for _ in micro_batches]
        for number, bundle, arrays in buffers.tapped:
            if bundle.trace in scales and bundle.rows is not None:  # statistics of gradients
                arrays[0] = _divided(arrays[0], scales[bundle.trace])
            tapped[number].append((bundle, arrays))
        return list(map(gathered, tapped))

    def _flag(self, shape: Shape, updates: Tapped) -> np.bool | None:
        """Returns whether an update was halted, in all processes; None if no update is checked."""
        stage = shape.update.home_of(HALTED) if shape.update is not None else None
        if stage is None:
            return None
        flags = [updates[HALTED]] if HALTED in updates.keys else None
        if any(not group.is_local for group in self._groups):
            flags = self._to_all.share(stage, flags, [jax.ShapeDtypeStruct((1,), jnp.bool_)])
        return np.asarray((flags or [])[0])[0]

    def _blank(self, tapped: Tapped) -> Tapped:
        """Returns taps with the statistics of an update that is not recorded.

        They are computed all the same: only the host knows the number of the update.
        """
        values = [
            self._blank_statistics(value.shape) if isinstance(key, Rows) else value
            for key, value in tapped.items()
        ]
        return Tapped(tapped.keys, tuple(values))

    def _blank_statistics(self, shape: tuple[int, ...]) -> jax.Array:
        if shape not in self._no_statistics:
            values = np.full(shape, np.nan, np.float32)
            values[..., COUNTS] = -1.0  # a count that no tensor has, as in programs/taps/tensors.py
            self._no_statistics[shape] = jnp.asarray(values)
        return self._no_statistics[shape]


class UpdateCount:
    """The number of the next update, without waiting for the count on the device.

    An update that the optimizer itself skips, as loss scaling may, counts here but not on the
    device, until values set from outside make the count be read again.
    """

    def __init__(self) -> None:
        self._last: tuple[jax.Array | None, int] = (None, 0)  # the device's value, its count
        self.number = 0

    def begin(self, iterations: jax.Array) -> None:
        """Begins at the count in a state, which is read only if it is not the last one."""
        last, self.number = self._last
        if iterations is not last:
            whole = getattr(iterations, "is_fully_addressable", True)
            self.number = int(np.asarray(iterations if whole else iterations.addressable_data(0)))

    def end(self, iterations: jax.Array) -> None:
        """Remembers the device's value of the count."""
        self._last = iterations, self.number


def check_queues(builder: StageBuilder) -> None:
    """Refuses queues whose values cannot be put together.

    Raises:
        TapError: if a queue takes values of both a layer and gradients, or gradients of several
            stages that are not dicts or are dicts with a common key.
    """
    keys: dict[Hashable, dict[int, Sequence[str] | None]] = {}
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


_TracedLeaves = tuple[jax.tree_util.PyTreeDef, dict[int, jax.Array]]


def gathered(tapped: Iterable[tuple[Bundle, Arrays]]) -> Tapped:
    """Puts the values tapped by several programs together: statistics by stage, whole values."""
    keys: list[Hashable] = []
    values: list[ArrayTree] = []
    leaves_of: dict[Hashable, dict[int | None, _TracedLeaves]] = {}  # by key and trace
    for bundle, arrays in sorted(tapped, key=lambda each: each[0].stage):
        if bundle.rows is not None:
            keys.append(bundle.rows)
            values.append(arrays[0])
        leaves = arrays[len(arrays) - len(bundle.leaves) :]
        for (key, leaf), array in zip(bundle.leaves, leaves, strict=True):
            traces = leaves_of.setdefault(key, {})
            traces.setdefault(bundle.trace, (bundle.trees[key], {}))[1][leaf] = array
    for key, traces in leaves_of.items():
        whole = [
            jax.tree.unflatten(tree, [leaves[leaf] for leaf in range(tree.num_leaves)])
            for tree, leaves in traces.values()
            if len(leaves) == tree.num_leaves
        ]
        if whole:
            keys.append(key)
            values.append(_merged(whole))
    return Tapped(tuple(keys), tuple(values))


def _merged(by_stage: list[ArrayTree]) -> ArrayTree:
    """Merges the dicts that the stages enqueued, that of the last stage first, as backward runs.

    `check_queues` has made sure that several values are dicts.
    """
    if len(by_stage) == 1:
        return by_stage[0]
    dicts = cast(list[dict[str, ArrayTree]], by_stage)
    return OrderedDict(item for entries in reversed(dicts) for item in entries.items())


def _for_others(tapped: Tapped) -> Tapped:
    """Returns taps without those that only this module reads."""
    kept = [
        (key, value)
        for key, value in tapped.items()
        if key != HALTED and not isinstance(key, LossScale)
    ]
    return Tapped(tuple(key for key, _ in kept), tuple(value for _, value in kept))


@jax.jit
def _divided(rows: jax.Array, scale: jax.Array) -> jax.Array:
    return rows.at[..., :5].divide(scale[0])  # all but shares and counts
