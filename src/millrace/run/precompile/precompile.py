"""Compiles all programs that a loop would run."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import jax
import keras

from millrace._compat.keras_build import build_for
from millrace.base.arguments import refuse_unknown
from millrace.base.options import whole_number
from millrace.base.pytrees import ArrayTree
from millrace.compilation.executables.progress import search
from millrace.errors import NotCompiledError
from millrace.programs.feeds.block import Block, BlockSlice
from millrace.programs.feeds.block import batch_spec as spec_of
from millrace.programs.plan import BatchSpec, Mode
from millrace.programs.steps.state import State, state_of
from millrace.run.compiled_loop.protocol import DryRun, ExecutionSteps, Runner
from millrace.run.fit.checks import check_steps, shortened_to_stop
from millrace.run.fit.controller import Controller
from millrace.run.fit.setup import Setup
from millrace.run.precompile.described_batch import BatchDescription, batch_of_zeros


@dataclass(frozen=True, slots=True)
class Batches:
    """The batches of a loop."""

    spec: BatchSpec  # of one step
    per_execution: int  # steps, as given to compile()
    per_epoch: int | None = None  # steps; None if not known


def batches_of_steps(
    setup: Setup, mode: Mode, spec: BatchSpec, steps_per_epoch: int | None
) -> Batches:
    """Returns the batches that a loop computes for micro-batches of the user.

    Args:
        setup: of the model.
        mode: of the loop.
        spec: of one micro-batch.
        steps_per_epoch: in micro-batches; None if not known.
    """
    merges = setup.merges(mode)
    if merges > 1:
        spec = spec.of_rows(spec.rows * merges)
        steps_per_epoch = None if steps_per_epoch is None else -(-steps_per_epoch // merges)
    return Batches(spec, setup.steps_per_execution(mode), steps_per_epoch)


def compile_loop_programs(
    controller: Controller, runner: Runner, mode: Mode, batches: Batches
) -> None:
    """Compiles the programs of a loop over such batches; the runner keeps them."""
    execution = described_execution(controller, mode, batches)
    # From now on, calls that return the results of steps hold as many as this execution has.
    runner.extend_records(execution.longest)
    dry_run_of(runner, batches).compile(state_specs(controller.model, mode), execution)


def dry_run_of(runner: Runner, batches: Batches) -> DryRun[Any]:
    """Returns the dry run of a runner.

    Its executions may be longer or shorter than the model's, where a change is tried out.
    """
    return runner.dry_run(single_steps=batches.per_execution == 1)


def described_execution(controller: Controller, mode: Mode, batches: Batches) -> ExecutionSteps:
    """Returns a full execution of a loop over such batches.

    Raises:
        PlanError: if an update would begin in one execution and end in another.
    """
    setup = controller.setup
    steps = steps_of_execution(setup, mode, batches)
    shape = controller.feeds.block_shape(setup, mode, steps)
    # Arrays that are kept on the device are cut into blocks of an epoch, not of an execution.
    capacity = shape.capacity(batches.spec, batches.per_epoch or steps)
    slices = [
        BlockSlice(Block(None, batches.spec, capacity, count), 0, count)
        for begin in range(0, steps, capacity)
        for count in [min(capacity, steps - begin)]
    ]
    return ExecutionSteps(slices, steps)


def steps_of_execution(setup: Setup, mode: Mode, batches: Batches) -> int:
    """Returns the number of steps of one execution.

    Raises:
        PlanError: if an update would begin in one execution and end in another.
    """
    steps = check_steps(
        setup.accumulation, mode, batches.per_execution, batches.per_epoch, setup.replicas
    )
    if mode is not Mode.TRAIN:
        return steps
    return shortened_to_stop(steps, setup.stop_within, setup.update_steps(mode))


def state_specs(model: keras.Model, mode: Mode) -> State:
    """Returns the specs of the state that Keras passes to a function of this mode."""
    return state_of(model, mode, lambda v: jax.ShapeDtypeStruct(tuple(v.shape), v.dtype))


_OPTIONS = ("steps_per_epoch",)
_REASONS = {"batch_size": "it follows from the shapes of batch_spec."}


def precompile(
    controller: Controller,
    batch_spec: BatchDescription,
    *,
    steps_per_epoch: int | None = None,
    **unknown: object,
) -> None:
    """Compiles the programs that fit, evaluate and predict will run on such batches.

    Nothing is run. All programs are compiled at the same time, those of all stages included, and
    kept in the cache on disk if there is one. The model gets the variables that `fit` would make:
    those of its metrics and its optimizer.

    Args:
        controller: of the model whose method this becomes.
        batch_spec: one micro-batch as `fit` sees it, `(x, y)` or `(x, y, sample_weight)`, of
            arrays, `jax.ShapeDtypeStruct`s or pairs of shape and dtype. The values do not matter.
            For x alone only predict is compiled.
        steps_per_epoch: batches in an epoch, which is the most that a block of arrays that stay on
            the device holds; None cuts them into blocks of one execution.
        **unknown: refused, with the nearest name.

    Raises:
        OptionError: for any other batch, or an unknown option.
        NotCompiledError: if there are targets, and the model is not compiled.
        PlanError: if options and stages do not fit together, as in `fit`.
    """
    refuse_unknown("precompile", unknown, _OPTIONS, _REASONS)
    if steps_per_epoch is not None:
        whole_number("steps_per_epoch", steps_per_epoch, 1)
    whole = batch_of_zeros(batch_spec)
    batches = {}
    for mode in _modes(controller, whole):
        controller.setup.check(mode)
        is_x_alone = mode is Mode.PREDICT and _has_targets(whole)
        batch = batch_of_zeros((cast(tuple, batch_spec)[0],)) if is_x_alone else whole
        batches[mode] = batches_of_steps(controller.setup, mode, spec_of(batch), steps_per_epoch)
        steps_of_execution(controller.setup, mode, batches[mode])  # refuses what no loop could run
    _build(controller, whole)
    stages = controller.setup.stages
    if Mode.TRAIN in batches and stages.is_open:
        stages.put(stages.decide(batches[Mode.TRAIN].spec))
    for mode in batches:
        getattr(controller.model, f"make_{mode.value}_function")()

    def job(mode: Mode) -> Callable[[], None]:
        runner = controller.functions.compiled[mode].runner()
        return lambda: compile_loop_programs(controller, runner, mode, batches[mode])

    at_once(controller, [job(mode) for mode in batches])
    for mode in batches:
        controller.feeds.fix_capacity(mode, batches[mode].spec)


def at_once(controller: Controller, jobs: Sequence[Callable[[], None]]) -> None:
    """Runs jobs that compile programs of a model, each in a thread, and waits for all."""
    # The default of the thread that will run the programs, not that of a new thread.
    device = jax.config.jax_default_device  # type: ignore[attr-defined]

    def do(job: Callable[[], None]) -> None:
        with jax.default_device(device):
            job()

    with (
        search(f"compiling {controller.model.name!r}"),
        ThreadPoolExecutor(len(jobs), "millrace-precompile") as pool,
    ):
        for each in [pool.submit(do, job) for job in jobs]:
            each.result()


def _modes(controller: Controller, batch: ArrayTree) -> list[Mode]:
    if not _has_targets(batch):
        return [Mode.PREDICT]
    if not controller.model.compiled:
        raise NotCompiledError(
            f"{controller.model.name!r} is not compiled, and the programs of its training depend "
            "on its optimizer and its loss. Call model.compile(optimizer, loss) before "
            "precompile(), or give it x alone to compile predict."
        )
    return list(Mode)


def _has_targets(batch: ArrayTree) -> bool:
    return keras.utils.unpack_x_y_sample_weight(batch)[1] is not None


def _build(controller: Controller, batch: ArrayTree) -> None:
    model = controller.model
    if model.compiled and _has_targets(batch):
        controller.feeds.is_built_ahead |= build_for(model, batch)
    elif not model.built:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        model.build(jax.tree.map(lambda leaf: leaf.shape, x))
