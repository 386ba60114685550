"""Attaching one model to a strategy, without changing its class.

Methods are bound to the instance: a changed class would break saving, loading and pickling, which
look classes up by name. What attachment adds to a model:

    make_train_function, ...       return compiled functions to Keras's loops; Keras's own where the
                                   model is not to be compiled (`run/fit/uncompiled.py`)
    fit, evaluate, predict         Keras's, with threads that end however the loop ends
    train_on_batch, ...            Keras's, without Ctrl-C in the middle
    set_*_options, ...             `methods.py`
    state_sync                     brings values that lie on several devices back to the variables
    save, save_weights             with many processes, files that are never half written
    save_assets, load_assets       the options travel in a `.keras` file; stock Keras skips them
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import keras

from millrace._compat.jax_arrays import uncommitted
from millrace._compat.keras_build import checked_build
from millrace._compat.keras_layers import let_traced_layers_compile
from millrace._compat.keras_loops import (
    STATE_SYNC,
    is_stock,
    let_loops_ask,
    report_logs,
    set_epoch_iterators,
    write_loop_state,
)
from millrace._compat.keras_optimizers import unshare_averages
from millrace.api.strategy.methods import METHODS
from millrace.api.strategy.saving import load_options, save_options
from millrace.base.interrupts import held_back
from millrace.base.threads.scoped_value import ScopedValue
from millrace.errors import ModelError
from millrace.programs.feeds.block import batch_spec
from millrace.programs.plan import Mode
from millrace.run.fit.asynchronous import callback_list
from millrace.run.fit.callbacks import last_ones_last
from millrace.run.fit.checks import hint_steps_per_execution
from millrace.run.fit.controller import ATTRIBUTE, Controller, controller_of
from millrace.run.fit.described import refuse_described
from millrace.run.fit.epochs import make_epoch_iterator
from millrace.run.fit.functions import LoopFunction
from millrace.run.fit.multi_process import quiet_unless_first, whole_files
from millrace.run.fit.offloading import bring_back
from millrace.run.fit.on_batch import NAMES, short_call
from millrace.run.fit.pipelined_model import StageAssignment
from millrace.run.fit.setup import Setup
from millrace.run.fit.totals import Totals
from millrace.run.fit.uncompiled import check_uncompiled, make_uncompiled_function, runs_uncompiled
from millrace.run.processes.agreement import gathered
from millrace.tools.memory_report.report import explained
from millrace.tools.planning.automatic import plan_fit

P = ParamSpec("P")
T = TypeVar("T")

_FILES = ("save", "save_weights")
_LOOPS = {"fit": Mode.TRAIN, "evaluate": Mode.TEST, "predict": Mode.PREDICT}


def attach(model: keras.Model, devices: Sequence[jax.Device], totals: Totals) -> Controller:
    """Attaches `model`, perhaps at the start of its construction: layers are not read here."""
    setup = Setup(model=model, devices=tuple(devices), stages=StageAssignment(model))
    controller = Controller(setup, totals)
    attributes: dict[str, object] = {ATTRIBUTE: controller}
    for method in METHODS:
        attributes[method.__name__] = bound(method, controller)
    for mode in Mode:
        attributes[f"make_{mode.value}_function"] = _make_function(controller, mode)
    for name, mode in _LOOPS.items():
        attributes[name] = _loop(model, name, mode, controller)
    for mode, name in NAMES.items():
        attributes[name] = _on_batch(getattr(model, name), mode, controller)
    name, report = report_logs(model, controller.logs_of_epoch)
    attributes[name] = report
    attributes[STATE_SYNC] = _state_sync(controller)
    attributes.update(checked_build(model, batch_spec))
    for name in _FILES:
        attributes[name] = whole_files(model, name)
    if isinstance(model, keras.Sequential):
        attributes["build"] = _build_of_sequential(model.build)
    attributes["save_assets"] = _with_options(model, "save_assets", controller, save_options)
    attributes["load_assets"] = _with_options(model, "load_assets", controller, load_options)
    for name, value in attributes.items():
        controller.attributes.bind(name, value)
    let_loops_ask()
    let_traced_layers_compile(lambda each: controller_of(each) is not None)
    return controller


def detach(model: keras.Model) -> None:
    """Makes `model` a stock one again. Weights, optimizer and compilation stay.

    Raises:
        ModelError: while its fit, evaluate or predict runs, in any thread.
    """
    controller = controller_of(model)
    if controller is None:
        return
    if controller.is_running:
        raise ModelError(
            f"{model.name!r} cannot be detached while its fit, evaluate or predict is going on, "
            "in a callback of it or in another thread. Call strategy.detach(model) after it has "
            "returned; to end fit early, set model.stop_training = True."
        )
    default = jax.config.jax_default_device or jax.local_devices()[0]  # type: ignore[attr-defined]
    move_values(model, default)
    controller.attributes.unbind()
    model.train_function = model.test_function = model.predict_function = None


def move_values(model: keras.Model, device: jax.Device) -> None:
    """Moves all values of a model to a device; a strategy may keep them elsewhere, or in parts."""
    own = [*model.variables, *getattr(getattr(model, "optimizer", None), "variables", ())]
    own += [variable for metric in getattr(model, "metrics", ()) for variable in metric.variables]
    bring_back(own)
    for variable in own:
        value = gathered(variable.value)
        variable.assign(uncommitted(jax.device_put(value, device)))


_builds_inner_graph = ScopedValue(False)


def builds_inner_graph() -> bool:
    """Whether a Sequential in this thread builds its inner Functional model, which is not attached.

    A Sequential builds another one with every layer that is added, and keeps them all.
    """
    return _builds_inner_graph.get()


def _build_of_sequential(build: Callable[P, None]) -> Callable[P, None]:
    @functools.wraps(build)
    def build_graph(*args: P.args, **kwargs: P.kwargs) -> None:
        with _builds_inner_graph.bound_to(True):
            build(*args, **kwargs)

    return build_graph


def bound(function: Callable[..., T], controller: Controller) -> Callable[..., T]:
    """Returns a function of a controller as the method of its model."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def method(*args: object, **kwargs: object) -> T:
        return function(controller, *args, **kwargs)

    visible = [p for p in signature.parameters.values() if p.name not in ("controller", "unknown")]
    method.__signature__ = signature.replace(parameters=visible)  # type: ignore[attr-defined]
    return method


def _make_function(controller: Controller, mode: Mode) -> Callable[..., None]:
    attribute = f"{mode.value}_function"

    def make_function(force: bool = False) -> None:
        model = controller.model
        if runs_uncompiled(controller.setup):
            make_uncompiled_function(controller.setup, controller.functions, mode)
            return
        current = getattr(model, attribute)
        if force or current is None or current is not controller.functions.compiled.get(mode):
            controller.functions.compiled[mode] = LoopFunction(controller, mode)
            setattr(model, attribute, controller.functions.compiled[mode])

    make_function.__doc__ = f"Makes the {mode.value} function that Keras's loop calls."
    return make_function


def _loop(model: keras.Model, name: str, mode: Mode, controller: Controller) -> Callable[..., Any]:
    signature = inspect.signature(getattr(type(model), name))

    def loop(*args: object, **kwargs: object) -> Any:
        model = controller.model
        if controller_of(model) is not controller:  # a method of a detached model
            return getattr(model, name)(*args, **kwargs)
        stock = getattr(type(model), name)
        bound = signature.bind(model, *args, **kwargs)
        bound.apply_defaults()
        refuse_described(controller.setup, name, bound.arguments)
        is_uncompiled = runs_uncompiled(controller.setup)
        if is_uncompiled:
            check_uncompiled(controller.setup, mode)
        else:
            controller.setup.check(mode)
            controller.agreement.note(controller.setup, mode, controller.is_running)
            if mode is Mode.TRAIN and model.steps_per_execution == controller.setup.replicas == 1:
                steps = controller.setup.accumulation_as_set.steps
                if controller.totals.notes.is_new(f"updates of {steps} steps: {model.name}"):
                    hint_steps_per_execution(model.name, steps)
        if is_uncompiled:
            with controller.running(mode, bound.arguments):
                return stock(*bound.args, **bound.kwargs)
        if mode is Mode.TRAIN and stock is keras.Model.fit:
            plan_fit(controller, bound.arguments)
        arguments = bound.arguments
        if "callbacks" in arguments:
            arguments["callbacks"] = last_ones_last(arguments["callbacks"])
        quiet_unless_first(controller.setup, arguments)
        with controller.running(mode, arguments), explained(controller):
            if "callbacks" in arguments:
                takes_list = is_stock(stock)
                arguments["callbacks"] = callback_list(controller, mode, arguments, takes_list)
            result = stock(*bound.args, **bound.kwargs)
            if mode is Mode.TRAIN:
                unshare_averages(model)
            return result

    functools.update_wrapper(loop, getattr(type(model), name))
    _, *parameters = signature.parameters.values()  # without self
    loop.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return loop


def _on_batch(method: Callable[P, T], mode: Mode, controller: Controller) -> Callable[P, T]:
    call, signature = short_call(controller, mode), inspect.signature(method)

    @functools.wraps(method)
    def on_batch(*args: P.args, **kwargs: P.kwargs) -> T:
        if controller.setup.is_described:
            given = signature.bind(*args, **kwargs).arguments
            refuse_described(controller.setup, NAMES[mode], given)
        with (
            controller.in_one_thread(),
            held_back(),
            controller.on_batch(mode),
            explained(controller),
        ):
            return call(*args, **kwargs)

    return on_batch


def _state_sync(controller: Controller) -> Callable[[], None]:
    def state_sync() -> None:
        model = controller.model
        write_loop_state(model, controller.functions.gather)
        if controller.setup.spans_processes:
            controller.agreement.has_left(model)
        if controller.checkpoints is not None:
            controller.checkpoints.has_synced()

    return state_sync


def _with_options(
    model: keras.Model,
    name: str,
    controller: Controller,
    take_options: Callable[[Controller, str], None],
) -> Callable[[str], None]:
    """Returns the method of a model for its assets, which saves or loads the options, too."""
    own = getattr(type(model), name, None)

    def assets(directory: str) -> None:
        if own is not None:
            own(controller.model, directory)
        take_options(controller, directory)

    return assets


set_epoch_iterators(make_epoch_iterator)
