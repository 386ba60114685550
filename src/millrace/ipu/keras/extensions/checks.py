"""What an extended model is refused for, before anything is compiled.

The native pipeline has no such rule: it brings the variable to the other devices.

a call outside of all PipelineStage scopes, and another one inside   -> OptionError

The layers of a Sequential make a Functional model too, whose stages nobody reads.

gradient_accumulation_steps_per_replica    must be set; multiples of what runs at once
*_stages_poplar_options                    one for each stage
offload_*, replicated_*                    of no effect in evaluate and predict
"""

import functools
import logging
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import keras

from millrace._compat.keras_graph import has_own_call
from millrace.errors import DataError, ModelError, OptionError, PlanError
from millrace.fit.controller import Controller
from millrace.fit.setup import Setup
from millrace.ipu.inert import notes
from millrace.ipu.keras.extensions.arguments import STEPS
from millrace.ipu.keras.extensions.building import ModelExtension
from millrace.ipu.keras.extensions.settings import Settings
from millrace.ipu.ops.schedules import check_length
from millrace.optimizers.accumulating import AccumulatingOptimizer
from millrace.pipelines.assignment.assignment import Assignment, scoped_stages
from millrace.pipelines.assignment.calls import find_calls, leaves
from millrace.plan import Mode
from millrace.threads.scoped_value import ScopedValue


def check_shared_variables(model: Any, assignment: Assignment, mapping: Any) -> None:
    """Refuses stages on several devices that use one variable.

    Args:
        model: a pipelined model.
        assignment: its stages.
        mapping: the device of each stage.

    Raises:
        PlanError: naming the variable, the stages and their devices.
    """
    if len(mapping) != assignment.num_stages:
        return  # refused where devices are shared out
    calls = find_calls(model)
    stages = scoped_stages(calls) if assignment.stages is None else assignment.stages
    used: dict[int, tuple[Any, set[int]]] = {}
    for leaf, stage in zip(leaves(calls), stages, strict=True):
        if stage is not None:
            for variable in getattr(leaf.operation, "weights", ()):
                used.setdefault(id(variable), (variable, set()))[1].add(stage)
    for variable, users in used.values():
        devices = [mapping[stage] for stage in sorted(users)]
        if len(set(devices)) > 1:
            raise PlanError(
                f"The variable '{variable.path}' is used in the pipeline stages {sorted(users)}, "
                f"which are on the devices {devices}. Put these stages on one device with "
                "device_mapping in set_pipelining_options(), or their layers into one stage."
            )


def checking(build: Callable[..., None], controller: Controller) -> Callable[..., None]:
    """Returns the `build` of a Functional model, which ends its construction."""

    @functools.wraps(build)
    def checked(*args: Any, **kwargs: Any) -> None:
        build(*args, **kwargs)
        if not _is_in_sequential.get():
            controller.setup.stages.assignment()

    return checked


def sparing(build: Callable[..., None]) -> Callable[..., None]:
    """Returns the `build` of a Sequential."""

    @functools.wraps(build)
    def spared(*args: Any, **kwargs: Any) -> None:
        with _is_in_sequential.bound_to(True):
            build(*args, **kwargs)

    return spared


_is_in_sequential = ScopedValue(False)

logger = logging.getLogger("millrace")

INFINITE, UNKNOWN = -1, -2  # cardinalities of data sets
_STEPS = {Mode.TRAIN: "steps_per_epoch", Mode.TEST: "steps", Mode.PREDICT: "steps"}


def check_source(data: Any) -> None:
    """Refuses data that comes from Python code of unknown shapes.

    Raises:
        DataError: saying what to make of it.
    """
    kind = type(data).__name__
    if isinstance(data, types.GeneratorType | keras.utils.PyDataset):
        raise DataError(
            f"The data is a {kind}, whose shapes nobody knows. Make a data set of it: "
            "tf.data.Dataset.from_generator(lambda: data, output_signature=...)."
        )
    if isinstance(data, Iterator):
        raise DataError(
            f"The data is an iterator, {kind}, whose shapes nobody knows. Wrap what it goes over: "
            "def generator(): yield from data, and then "
            "tf.data.Dataset.from_generator(generator, output_signature=...)."
        )
    for leaf in jax.tree.leaves(getattr(data, "element_spec", None), is_leaf=_has_shape):
        shape = getattr(leaf, "shape", ())
        dimensions = getattr(shape, "dims", shape)  # TensorFlow's own shapes have these
        if dimensions is None or None in list(dimensions):
            raise DataError(
                f"Elements of the data set have the shape {shape}, which is not known in full. "
                "Set drop_remainder=True in batch(), or give from_generator() full shapes."
            )


def check_batches(adapter: Any, arguments: Mapping[str, Any], mode: Mode, epochs: int) -> int:
    """Returns the batches of an epoch.

    Args:
        adapter: Keras's, of the data.
        arguments: of Keras's epoch iterator.
        mode: of the loop.
        epochs: that the loop runs.

    Raises:
        DataError: if the last batch is smaller, nobody knows how many there are, or there are too
            few.
    """
    size = getattr(adapter, "batch_size", None)
    rest = getattr(adapter, "partial_batch_size", None) if adapter.has_partial_batch else None
    if rest:
        rows = (adapter.num_batches - 1) * size + rest
        raise DataError(
            f"The data has {rows} rows, which are not a whole number of batches of "
            f"batch_size={size}: the last one would have {rest}. Set batch_size to a divisor of "
            f"{rows}, or leave {rest} rows out."
        )
    steps, name = arguments.get("steps_per_epoch"), _STEPS[mode]
    available = adapter.num_batches
    if steps is None and available is None:
        raise DataError(
            f"Nobody knows how many batches the data has, and {name}=None. Set {name}, or give "
            "the data set a size: no repeat() without a number."
        )
    if steps is None or steps == available:
        return available  # the data begins anew in every epoch
    needed = steps * epochs
    if available is None:
        if _cardinality(arguments.get("x")) != INFINITE:
            logger.info(
                "Nobody knows how many batches the data has; %d are needed. It may end before. "
                "Append repeat() to the data set to be sure.",
                needed,
            )
    elif available < needed:
        raise DataError(
            f"The data has {available} batches, and {epochs} epochs of {name}={steps} need "
            f"{needed}. Append repeat() to the data set, or set {name} to "
            f"{available // epochs or available} or less."
        )
    return steps


def _cardinality(data: Any) -> int:
    known = getattr(data, "cardinality", None)
    return int(known()) if callable(known) else UNKNOWN  # type: ignore[call-overload]


def _has_shape(leaf: Any) -> bool:
    return hasattr(leaf, "shape")


_OF_TRAINING = (
    "offload_weight_update_variables",
    "replicated_optimizer_state_sharding",
    "offload_activations",
    "offload_gradient_accumulation_buffers",
)


def check_pipeline(setup: Setup, settings: Settings, assignment: Assignment, mode: Mode) -> None:
    """Refuses pipelines that the IPU would not run.

    Args:
        setup: of the model.
        settings: what its setters were told.
        assignment: its stages.
        mode: of the loop.

    Raises:
        OptionError: for a number that was not set, or a list of another length.
        PlanError: for a number of micro-batches, or a variable on several devices.
    """
    model = setup.model
    mapping = setup.options.pipelining.devices_of(assignment.num_stages)
    check_shared_variables(model, assignment, mapping)
    if mode is not Mode.TRAIN:
        _note_inert(setup, settings)
        return
    steps = settings.pipelining.steps
    if steps is None:
        raise OptionError(
            f"The pipelined model {model.name!r} was not told how many micro-batches make one "
            f"weight update. Call model.set_pipelining_options({STEPS}=...) before fit."
        )
    _check_stages(settings, assignment.num_stages)
    if assignment.num_stages > 1:  # else refused as a pipeline
        check_length(settings.schedule, mapping, steps, training=True)


def _check_stages(settings: Settings, number: int) -> None:
    for way in ("forward", "backward"):
        name = f"{way}_propagation_stages_poplar_options"
        given = settings.pipelining.more.get(name)
        if given is not None and len(given) != number:
            raise OptionError(
                f"{name} has {len(given)} entries, and the model has {number} pipeline "
                "stages. Give one PipelineStageOptions for each."
            )


def _note_inert(setup: Setup, settings: Settings) -> None:
    """Warns, once for a model, of what does nothing where no weights are updated."""
    given = [name for name in _OF_TRAINING if settings.of_either(name)]
    name = setup.model.name
    if given and notes.is_new(f"inference of {name}, {id(setup.model)}: {given}"):
        logger.warning(
            "%s have no effect in evaluate and predict of the pipelined model %r: no weights "
            "are updated there.",
            ", ".join(given),
            name,
        )


_MADE = ("make_train_function", "make_test_function", "make_predict_function")
_DISABLE = "IPUStrategy(enable_keras_extensions=False)"


def check_overrides(model: Any, mode: Mode, is_pipelined: bool) -> None:
    """Refuses overrides that the strategy would not call.

    Args:
        model: the one that is about to run.
        mode: of the loop that it runs.
        is_pipelined: whether its layers are in stages.

    Raises:
        ModelError: naming the function and the model.
    """
    name = f"{type(model).__name__} {model.name!r}"
    for function in _MADE:
        if getattr(type(model), function) is not getattr(keras.Model, function):
            raise ModelError(
                f"{name} overrides {function}(), which is what the strategy provides. Remove the "
                f"override, or build the model under an {_DISABLE}."
            )
    step = f"{mode.value}_step"
    if is_pipelined and getattr(type(model), step) is not getattr(keras.Model, step):
        raise ModelError(
            f"{name} is pipelined and overrides {step}(), which runs the whole model at once. "
            "Override compute_loss() or compute_metrics() instead, which the last stage calls, "
            "or call reset_pipeline_stage_assignment()."
        )
    if is_pipelined and has_own_call(model) and not isinstance(model, ModelExtension):
        raise ModelError(
            f"{name} is pipelined and overrides call(), of which the stages of its layers know "
            "nothing. Remove the override, derive the model from keras.Model with a call() only, "
            "or call reset_pipeline_stage_assignment()."
        )


def check_optimizer(model: Any, setter: str) -> None:
    """Refuses an optimizer that accumulates too, or whose own `minimize` would be passed over.

    One that derives from the base of all optimizers may have one: there is none to override.

    Args:
        model: one whose gradients accumulate over batches.
        setter: the method that says over how many.

    Raises:
        OptionError: naming the optimizer.
    """
    optimizer = model.optimizer
    _check_accumulation(model, optimizer, setter)
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
        _check_accumulation(model, optimizer, setter)
    for kind in type(optimizer).__mro__:
        is_keras = kind.__module__.split(".")[0] == "keras"
        if is_keras or kind.__bases__ == (keras.optimizers.Optimizer,):
            return
        if "minimize" in vars(kind):
            raise OptionError(
                f"The optimizer {type(optimizer).__name__} of {model.name!r} overrides minimize(), "
                "which does not run where several batches make an update. Override "
                "update_step() or apply() instead."
            )


def _check_accumulation(model: Any, optimizer: Any, setter: str) -> None:
    own = getattr(optimizer, "gradient_accumulation_steps", None)
    if not own and not isinstance(optimizer, AccumulatingOptimizer):
        return
    what = f"gradient_accumulation_steps={own} of its optimizer" if own else "its optimizer"
    raise OptionError(
        f"The model {model.name!r} would accumulate gradients twice: by {what} "
        f"{type(optimizer).__name__}, and as its strategy was told. Compile it with the optimizer "
        f"alone, and call model.{setter}(gradient_accumulation_steps_per_replica=...)."
    )
