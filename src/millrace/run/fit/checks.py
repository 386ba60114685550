"""Refusals of models and numbers of steps that no compiled loop can run, before compiling."""

import inspect
import logging

import keras

from millrace._compat.keras_data import DataAdapter, is_endless
from millrace._compat.keras_layers import flagged_layers, layers_without_jit
from millrace._compat.keras_optimizers import wrapped_chain
from millrace.base.options import Accumulation, Options, Reduction, whole_number
from millrace.errors import (
    DataError,
    ModelError,
    OptionError,
    PlanError,
    UnsupportedError,
)
from millrace.programs.plan import Mode
from millrace.programs.steps.own_step import has_own_step

logger = logging.getLogger("millrace")

_LOOP = {Mode.TRAIN: "fit", Mode.TEST: "evaluate", Mode.PREDICT: "predict"}
_STEPS = {Mode.TRAIN: "steps_per_epoch", Mode.TEST: "steps", Mode.PREDICT: "steps"}


def check_data(adapter: DataAdapter, num_batches: int | None, mode: Mode) -> None:
    """Refuses endless data without a number of steps.

    Raises:
        DataError: naming the argument to set.
    """
    if num_batches is None and is_endless(adapter):
        raise DataError(
            f"The data never ends, and {_LOOP[mode]} has no number of steps to run: "
            f"{_STEPS[mode]}=None. Set {_STEPS[mode]} in {_LOOP[mode]}(), or give the data an end: "
            "no repeat() on a tf.data.Dataset, a num_batches on a PyDataset."
        )


def check_steps_per_execution(model: keras.Model) -> None:
    """Refuses a value that is no number of steps.

    Raises:
        OptionError: with a number to set instead.
    """
    try:
        whole_number("steps_per_execution", model.steps_per_execution, 1)
    except OptionError as error:
        raise OptionError(
            f"{error} It is the argument of {model.name!r}.compile(): the steps that run in one "
            "call of compiled code, such as 100."
        ) from None


def check_steps(
    accumulation: Accumulation,
    mode: Mode,
    steps_per_execution: int,
    steps: int | None,
    replicas: int = 1,
) -> int:
    """Returns the steps of a full execution: no more than the epoch has.

    Keras's default of one step per execution stands for one update, outside of training for one
    step of each replica.

    Raises:
        PlanError: if an update would begin in one execution and end in another.
    """
    trains = mode is Mode.TRAIN
    update_steps = replicas * (accumulation.steps if trains else 1)
    if steps_per_execution == 1:
        steps_per_execution = update_steps
    truncated = min(steps_per_execution, steps or steps_per_execution)
    if steps_per_execution % update_steps == 0 or truncated == steps:
        return truncated
    down = steps_per_execution - steps_per_execution % update_steps
    names, numbers = factors(accumulation)
    what = (
        f"weight updates. One update takes {names} x replicas = {numbers} x {replicas}"
        if trains
        else "rounds. One round takes one step of each of the replicas"
    )
    other = (
        f", or {names} to a divisor of {steps_per_execution}"
        if trains and replicas == 1
        else ", or devices of the strategy to another number"
    )
    raise PlanError(
        f"steps_per_execution={steps_per_execution} is not a whole number of {what} = "
        f"{update_steps} steps, and the epoch has {steps or 'an unknown number of'} steps. Set "
        f"steps_per_execution={down or update_steps} in compile(){other}."
    )


def factors(accumulation: Accumulation) -> tuple[str, str]:
    """Returns the names of the options whose product is the accumulation, and their values."""
    name, each = "gradient_accumulation_steps_per_replica", accumulation.batch_serialization
    if each == 1:
        return name, str(accumulation.steps)
    return f"{name} x batch_serialization_iterations", f"{accumulation.steps // each} x {each}"


def shortened_to_stop(steps_per_execution: int, stop_within: int | None, update_steps: int) -> int:
    """Returns the steps of executions after which training may be stopped.

    Raises:
        PlanError: if that would be within an update, of `update_steps` steps.
    """
    if stop_within is None or stop_within >= steps_per_execution:
        return steps_per_execution
    if stop_within % update_steps:
        nearest = max(stop_within // update_steps, 1) * update_steps
        raise PlanError(
            f"stop_within={stop_within} is not a whole number of weight updates, which take "
            f"{update_steps} steps each. Set stop_within={nearest} in "
            "set_asynchronous_callbacks()."
        )
    return stop_within


def check_model(
    model: keras.Model,
    mode: Mode,
    accumulation: Accumulation,
    is_pipelined: bool = False,
    replicas: int = 1,
) -> None:
    """Refuses a model whose step is no pure function that can be compiled.

    Raises:
        ModelError: naming the model, what it does and what to change.
    """
    if mode is not Mode.PREDICT and not model.compiled:
        return  # Keras refuses it, with its own error
    check_distribution(model)
    check_made_functions(
        model,
        "Remove the override (train_step, test_step and predict_step may be overridden), or use "
        "the model without the strategy.",
    )
    name = described(model)
    _check_compiled(model, name, mode, is_pipelined or replicas > 1)
    if has_own_step(model, mode):
        _check_own_step(model, name, f"{mode.value}_step")
        if is_pipelined and mode is not Mode.TRAIN:
            check_pipelined_step(model, mode)
    if mode is Mode.TRAIN:
        _check_optimizer(model, name, accumulation)


def check_micro_batch(
    name: str, micro_batch: int | str, is_pipelined: bool, spans_processes: bool
) -> None:
    """Refuses to choose the rows of parts for a pipeline, and in several processes.

    Raises:
        UnsupportedError: with what to set instead.
    """
    if is_pipelined and micro_batch == "auto":
        raise UnsupportedError(
            f"{name!r} is pipelined, and micro_batch='auto' chooses for models in one piece. Set "
            "micro_batch to a number of rows; strategy.memory_report() tells the bytes that a "
            "number takes."
        )
    if spans_processes and micro_batch == "auto":
        raise UnsupportedError(
            f"{name!r} runs in several processes, and micro_batch='auto' chooses by the memory of "
            "one. Set micro_batch to the number of rows that it chooses on one device."
        )


def check_synchronized(model: keras.Model, options: Options, is_pipelined: bool) -> None:
    """Refuses what needs separate micro-batches where they are to be computed as one batch.

    Raises:
        UnsupportedError: saying what to set.
    """
    if is_pipelined and options.accumulation.synchronized_statistics:
        raise UnsupportedError(
            f"synchronized_batch_statistics=True computes the micro-batches of an update as one "
            f"batch, and the pipelined model {model.name!r} runs them one after the other. Set "
            "synchronized_batch_statistics=False and a larger batch_size with fewer micro-batches, "
            "or reset the stages (model.reset_pipeline_stage_assignment()) and train the model in "
            "one piece."
        )
    accumulation = options.accumulation
    if accumulation.synchronized_statistics and accumulation.micro_batch != "whole":
        raise UnsupportedError(
            "synchronized_batch_statistics=True computes all rows of an update as one batch, and "
            f"micro_batch={accumulation.micro_batch!r} divides batches. Set micro_batch='whole', "
            "and model.set_recomputation_options(budget=...) to take less memory."
        )
    reduction = accumulation.reduction
    means = (Reduction.AUTO, Reduction.MEAN, Reduction.RUNNING_MEAN)
    if accumulation.synchronized_statistics and accumulation.steps > 1 and reduction not in means:
        raise UnsupportedError(
            f"synchronized_batch_statistics=True computes the {accumulation.steps} micro-batches "
            "of an update as one batch, whose loss is a mean over its rows, and "
            f"gradient_accumulation_reduction_method={reduction.value!r} adds up those of separate "
            "micro-batches. Set gradient_accumulation_reduction_method='mean', and multiply the "
            "learning rate where you want the sum."
        )


def check_made_functions(model: keras.Model, advice: str) -> None:
    """Refuses a model that overrides `make_train_function` or its siblings.

    Args:
        model: about to run.
        advice: a sentence on what to do instead.

    Raises:
        ModelError: naming the model and the function.
    """
    for function in ("make_train_function", "make_test_function", "make_predict_function"):
        if getattr(type(model), function) is not getattr(keras.Model, function):
            raise ModelError(
                f"{described(model)} overrides {function}(), and the strategy provides "
                f"that function. {advice}"
            )


def check_pipelined_step(model: keras.Model, mode: Mode) -> None:
    """Refuses a pipelined model with a step of its own.

    Raises:
        ModelError: naming the model and the step.
    """
    if has_own_step(model, mode):
        raise ModelError(
            f"{described(model)} is pipelined and overrides {mode.value}_step(), which runs the "
            "whole model at once. Override compute_loss() or compute_metrics() instead, which the "
            "last stage calls, or call reset_pipeline_stage_assignment()."
        )


def check_distribution(model: keras.Model) -> None:
    """Refuses to run beside a `keras.distribution`.

    Raises:
        ModelError: naming the model, and what to change.
    """
    if keras.distribution.distribution() is not None:
        raise ModelError(
            f"{described(model)} runs under a strategy while a "
            "keras.distribution is set: both place data and weights. Call "
            "keras.distribution.set_distribution(None), or use the model without the strategy."
        )


def described(model: keras.Model) -> str:
    """Returns the class and the name of a model."""
    return f"{type(model).__name__} {model.name!r}"


def _check_compiled(model: keras.Model, name: str, mode: Mode, is_parted: bool) -> None:
    # A model in one piece on one device is run by Keras's own loop, and never comes here.
    other = (
        ", or run it in one piece on one device: Strategy(devices=1), without pipeline stages"
        if is_parted
        else ""
    )
    if getattr(model, "run_eagerly", False):
        cause = "stages and replicas are" if is_parted else "this is about"
        raise ModelError(
            f"{name} was compiled with run_eagerly=True, and {cause} compiled programs. "
            f"{remedy(model)}{other}. To look at values while a compiled program runs, use "
            "jax.debug.print."
        )
    if not model.compiled:
        return
    if not getattr(model, "jit_compile", True):
        layers = layers_without_jit(model)
        cause = (
            f"its layers {layers} do not support compilation"
            if layers
            else "it was compiled with jit_compile=False"
        )
        advice = remedy(model)
        raise ModelError(f"{name} cannot run as a compiled loop: {cause}. {advice}{other}.")


def remedy(model: keras.Model) -> str:
    """Returns what to do for a model that is not compiled to be."""
    if getattr(model, "run_eagerly", False):
        return "Remove run_eagerly from compile()"
    if layers_without_jit(model):
        return "Move these layers in front of the model, into the data set"
    advice = "Remove jit_compile from compile()"
    if flagged_layers(model):  # then Keras alone may have chosen it, before there was a strategy
        return f"{advice}, or set model.jit_compile = True"
    return advice


def _check_own_step(model: keras.Model, name: str, step: str) -> None:
    signature = inspect.signature(getattr(model, step))
    try:
        signature.bind("state", "data")  # as Keras calls it; a step may take `*args`
    except TypeError:
        names = list(signature.parameters)
        raise ModelError(
            f"{name} overrides {step}({', '.join(names)}). On the JAX backend a step is a pure "
            f"function {step}(state, data) that returns its results and the new state; one that "
            "takes the data alone changes variables on the way, as on other backends. "
            "See keras.io/guides/custom_train_step_in_jax."
        ) from None


def _check_optimizer(model: keras.Model, name: str, accumulation: Accumulation) -> None:
    for optimizer in wrapped_chain(model.optimizer):
        own = getattr(optimizer, "gradient_accumulation_steps", None)
        if own and accumulation.steps > 1:
            raise PlanError(
                f"{name} would accumulate twice: its optimizer over "
                f"gradient_accumulation_steps={own} steps, and the strategy over "
                f"{'='.join(factors(accumulation))}. Remove "
                "gradient_accumulation_steps from the optimizer."
            )


def hint_steps_per_execution(name: str, update_steps: int) -> None:
    """Logs the advice to run more than one step, or one update, per execution."""
    one = "step" if update_steps == 1 else f"weight update ({update_steps} steps)"
    logger.info(
        "model %r runs one %s per execution. Set steps_per_execution in compile() to a larger "
        "number, such as %d, for fewer round trips to Python.",
        name,
        one,
        100 * update_steps,
    )


def log_replicas(name: str, replicas: int, accumulation: Accumulation, rows: int | None) -> None:
    """Logs how many steps and rows an update of several replicas takes.

    Args:
        name: of the model.
        replicas: copies of it.
        accumulation: of each.
        rows: of one batch; None if unknown.
    """
    total = replicas * accumulation.steps
    names, numbers = factors(accumulation)
    logger.info(
        "model %r runs as %d replicas: one update takes %s x replicas = %s x %d = %d steps%s.",
        name,
        replicas,
        names,
        numbers,
        replicas,
        total,
        f" of {rows} rows, a global batch of {total * rows} rows" if rows else "",
    )
