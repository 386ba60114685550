"""`Strategy.plan`: checks, the search, and the plan or the error."""

import contextlib
from collections.abc import Sequence

import jax

from millrace._compat.jax_memory import memory_limit
from millrace.base.devices import device_name
from millrace.base.options import bytes_or_share
from millrace.base.options.table import AUTO
from millrace.base.records.memory import bytes_text
from millrace.base.records.training_plan import PlanRecord
from millrace.base.targets.target import target_of
from millrace.compilation.executables.progress import search
from millrace.errors import OptionError, PlanError, UnsupportedError
from millrace.programs.plan import BatchSpec, Mode
from millrace.run.fit.controller import Controller
from millrace.run.precompile.described_batch import BatchDescription
from millrace.tools.memory_report.report import training_batch
from millrace.tools.planning.alternatives import auto_cut
from millrace.tools.planning.cost import rates_of
from millrace.tools.planning.measuring import MeasuredCut
from millrace.tools.planning.search import PlanSearch
from millrace.tools.planning.training_plan import TrainingPlan
from millrace.tools.planning.trials import UpdateTrials


def make_plan(
    controller: Controller,
    batch_spec: BatchDescription,
    memory: int | str | None,
    is_measured: bool,
) -> TrainingPlan:
    """Returns the plan of a training; see `Strategy.plan`."""
    memory = controller.totals.memory if memory is None else memory
    limit = memory_of(controller.setup.devices, memory)
    if controller.setup.spans_processes:
        raise UnsupportedError(
            "plan() compiles trainings of many layouts, and the strategy has devices of other "
            "processes. Make the plan in one process on as many devices, save it, and call "
            "millrace.TrainingPlan.load(path).apply(model=model) in all of them."
        )
    if is_measured and controller.setup.is_described:
        raise UnsupportedError(
            "plan(measure=True) runs updates for their time, and the devices of a target are not "
            "here. Leave measure out: times are estimated from the device's public figures."
        )
    spec = training_batch(controller, batch_spec, "plan()", any_options=True)
    plan = search_plan(controller, spec, limit, is_measured)
    if not plan.fits:
        raise PlanError(_nothing_fits(plan))
    return plan


def search_plan(
    controller: Controller,
    spec: BatchSpec,
    limit: int,
    is_measured: bool = False,
    steps_of_epoch: int | None = None,
    keeps_batches: bool = False,
) -> TrainingPlan:
    """Returns the plan for batches; its alternatives may not fit.

    Args:
        controller: of a built model.
        spec: of all rows of one update.
        limit: bytes of one device.
        is_measured: whether updates are run for their times.
        steps_of_epoch: batches of an epoch; None if unknown.
        keeps_batches: whether `fit` continues with the batches of the model's present options.
    """
    setup, model = controller.setup, controller.model
    try:
        updates = max(1, setup.steps_per_execution(Mode.TRAIN) // setup.update_steps(Mode.TRAIN))
    except PlanError:  # stages that do not fit the devices, which the plan may replace
        updates = 1
    with search(f"planning {model.name!r}") as tick:
        cut = MeasuredCut(controller, spec, tick) if is_measured else auto_cut(spec)
        rates = rates_of(model, setup.devices[0])
        trials = UpdateTrials(controller, spec, limit, rates, is_measured, tick, steps_of_epoch)
        alternatives = PlanSearch(trials, cut, updates, keeps_batches).run()
    kind = target_of(setup.devices[0])
    return TrainingPlan(
        model=model.name,
        batch=str(spec),
        devices=tuple(map(device_name, setup.devices)),
        memory=limit,
        is_measured=is_measured,
        compilations=trials.compilations,
        alternatives=tuple(alternatives),
        target=None if kind is None else kind.description,
        planned=model,
    )


def memory_of(devices: Sequence[jax.Device], memory: int | str | None) -> int:
    """Returns the bytes of one device: as given, or what the devices report if that is less.

    Raises:
        OptionError: for anything else than bytes, or where a device reports nothing.
    """
    reported = [memory_limit(device) for device in devices]
    known = [each for each in reported if each is not None]
    if memory is not None and not (isinstance(memory, str) and memory.lower() == AUTO):
        return min([_bytes(memory), *known])
    if len(known) < len(reported):
        silent = devices[reported.index(None)]
        raise OptionError(
            f"memory={memory!r} takes what the devices report, and {silent} reports no memory. Set "
            "memory to the bytes of one device, such as memory='12GB'."
        )
    return min(known)


def _bytes(memory: int | str) -> int:
    nbytes: int | float = 0.0
    with contextlib.suppress(OptionError):
        nbytes = bytes_or_share(memory)
    if isinstance(nbytes, float):  # a share, or nothing that can be read
        raise OptionError(
            f"memory is the bytes of one device. Received: {memory!r}. Set it to a whole number "
            "of bytes, text such as '12GB', or 'auto'."
        )
    return nbytes


def _nothing_fits(plan: PlanRecord) -> str:
    least = min(plan.alternatives, key=lambda each: each.peak)
    code = "; ".join(least.code.splitlines())
    return (
        f"No training of {plan.model!r} that was compiled for updates of {plan.batch} fits into "
        f"{bytes_text(plan.memory)} ({plan.memory:,} bytes). Of these {plan.compilations}, "
        f"the smallest takes {least.peak:,} bytes: {code}. Set "
        f"memory={least.peak} or more, use fewer rows, or more devices.\n{plan}"
    )
