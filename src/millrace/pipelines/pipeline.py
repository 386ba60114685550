"""`millrace.pipeline`: functions as the stages of a pipeline, run where it is called.

look at the functions once -> the variables that they touch -> StagesModel, attached as a pipeline
elements of the infeed, in order -> fit | predict of that model -> outfeed
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import jax
import keras
import numpy as np

from millrace.errors import ModelError, OptionError, PlanError
from millrace.feeds.infeed_queue import InfeedQueue
from millrace.feeds.outfeed import OutfeedQueue
from millrace.graph.assignment import Assignment
from millrace.loops.on_host import require_host
from millrace.loops.replication import in_replica
from millrace.loops.same import identity
from millrace.loops.scope import look_at
from millrace.options import QueueMode, truth, whole_number
from millrace.pipelines.chain import (
    Chain,
    as_list,
    call_stage,
    check_captures,
    first_arguments,
    make_chain,
    next_arguments,
)
from millrace.pipelines.model import Outlet, StagesModel, call_optimizer_function
from millrace.pipelines.outlet import DTypeChoice, WindowSums
from millrace.strategy.controller import controller_of
from millrace.strategy.strategy import Strategy, strategy_in_scope

logger = logging.getLogger("millrace")

KEPT = 16  # pipelines, with their programs


def pipeline(
    stages: Sequence[Any],
    micro_batches: int,
    *,
    updates: int = 1,
    inputs: Any = None,
    infeed: InfeedQueue | None = None,
    outfeed: OutfeedQueue | None = None,
    optimizer_function: Callable[..., Any] | None = None,
    device_mapping: Sequence[Any] | None = None,
    outfeed_loss: bool = False,
    outfeed_mask: Sequence[bool] | None = None,
    accumulate_outfeed: bool = False,
    accumulate_outfeed_dtype: Any = None,
    strategy: Strategy | None = None,
    name: str = "pipeline",
    **options: Any,
) -> None:
    """Runs functions as the stages of a pipeline over the devices of a strategy.

        with strategy.scope():
            millrace.pipeline(
                [stage0, [stage1a, stage1b], stage2], 8,
                device_mapping=[0, [1, 2], 2],
                infeed=infeed, outfeed=outfeed,
                optimizer_function=lambda loss: (optimizer, loss),
            )

    Keras layers and variables are used in the functions as they are. Every result goes through the
    outfeed. With more devices than the pipeline takes it runs as replicas; element j of the infeed
    goes to replica `j % replicas`.

    Args:
        stages: functions. The first is called with `inputs` and then with what an element of the
            infeed has, by position, or by name if that is a dict; each later one with what the
            one before returned. A list of functions is one stage whose members run at the same
            time, each called with the same; their results are handed on in the order of the list.
        micro_batches: elements in one update of each replica, or without an optimizer function
            in one run.
        updates: as often is that done.
        inputs: values of this run, such as a learning rate: one or a list.
        infeed: gives every micro-batch an element.
        outfeed: takes what the last stage returns, once for each micro-batch.
        optimizer_function: called with what the last stage returns; gives `(optimizer, loss)`,
            or `(optimizer, loss, variables)` to train these only. None trains nothing.
        device_mapping: the place of each stage's device in `strategy.devices`, in the structure
            of `stages`. None is one each, in their order.
        outfeed_loss: True lets the outfeed take the loss and not the outputs.
        outfeed_mask: for each output True if the outfeed is not to take it.
        accumulate_outfeed: True lets the outfeed take one element for each update: the sum over
            its micro-batches.
        accumulate_outfeed_dtype: in which they are added: None is their own, a name, or a
            function of the value.
        strategy: whose devices to use; None is that of the scope.
        name: of the pipeline, for the compile log.
        **options: of `model.set_pipelining_options`, such as `pipeline_schedule`,
            `gradient_accumulation_reduction_method` and `recomputation_mode`.

    Raises:
        OptionError: for stages, devices or options that do not fit together.
        LoopError: if a stage does not take what the one before returns.
        PlanError: without a strategy.
        DataError: if the data ends too early. Whole updates before that have been made.
    """
    require_host()
    strategy = strategy or strategy_in_scope()
    if strategy is None:
        raise PlanError(
            "pipeline() runs on the devices of a strategy, and there is none. Call it within "
            "`with strategy.scope():`, or set strategy=millrace.Strategy()."
        )
    serialization = whole_number(
        "batch_serialization_iterations", options.get("batch_serialization_iterations", 1), 1
    )
    chain = make_chain(stages, device_mapping, on_one_device=serialization > 1)
    check_captures(chain.functions)
    trains = optimizer_function is not None
    window = whole_number("micro_batches", micro_batches, 1) * serialization
    whole_number("updates", updates, 0)
    _check_outfeed(outfeed, trains, outfeed_loss, outfeed_mask, accumulate_outfeed)
    values = [np.asarray(value) for value in as_list(inputs)]
    element = None if infeed is None else _specs(infeed.block().batches)
    parts = [
        identity(getattr(function, "__wrapped__", function))
        for function in (*chain.functions, optimizer_function)
    ]
    key = (
        tuple(part for part, _ in parts),
        chain.levels,
        chain.mapping,
        window,
        repr(element),
        repr([(value.shape, value.dtype) for value in values]),
        id(strategy),
        id(outfeed),
        (outfeed_loss, repr(outfeed_mask), accumulate_outfeed, id(accumulate_outfeed_dtype)),
        repr(sorted(options.items(), key=lambda item: item[0])),
        name,
    )
    alive = [parts, strategy, outfeed, accumulate_outfeed_dtype, options]

    def make() -> _Pipeline:
        queue = outfeed
        if queue is not None and accumulate_outfeed:
            queue = WindowSums(queue, window, _dtype_choice(accumulate_outfeed_dtype))
        outlet = Outlet(queue, outfeed_loss, outfeed_mask)
        return _make(chain, optimizer_function, outlet, values, element, strategy, name, options)

    with _lock:
        found = _kept.get(key)
        if found is None:
            options.setdefault("gradient_accumulation_steps_per_replica", micro_batches)
            found = _kept[key] = (make(), alive)
            if len(_kept) > KEPT:
                _kept.popitem(last=False)
        _kept.move_to_end(key)
        found[0].run(values, infeed, window, updates)


_kept: OrderedDict[Any, tuple["_Pipeline", Any]] = OrderedDict()
_lock = threading.RLock()


@dataclass(frozen=True, slots=True)
class _Pipeline:
    model: StagesModel
    inputs: list[keras.Variable]
    trains: bool
    replicas: int

    def run(self, values: list[Any], infeed: InfeedQueue | None, window: int, updates: int) -> None:
        for variable, value in zip(self.inputs, values, strict=True):
            variable.assign(value)
        steps = window * updates * self.replicas
        if not steps:
            return
        data = _elements(infeed, steps, self.replicas)
        if self.trains:
            self.model.fit(data, steps_per_epoch=steps, epochs=1, verbose=0, shuffle=False)
        else:
            self.model.predict(data, steps=steps, verbose=0)


def _make(
    chain: Chain,
    optimizer_function: Any,
    outlet: Outlet,
    values: list[Any],
    element: Any,
    strategy: Strategy,
    name: str,
    options: dict[str, Any],
) -> _Pipeline:
    found: list[Any] = []

    def whole(values: list[Any], element: Any) -> Any:
        args, kwargs = first_arguments(values, element)
        outputs: list[Any] = []
        for level in range(max(chain.levels) + 1):
            outputs = [call_stage(function, args, kwargs, level) for function in chain.on(level)]
            args, kwargs = next_arguments(outputs)
        if optimizer_function is None:
            return args, kwargs
        optimizer, loss, *variables = call_optimizer_function(optimizer_function, args, kwargs)
        found[:] = [optimizer, variables[0] if variables else None]
        return args, kwargs, loss

    with in_replica(np.int32(0), 1):
        specs = [
            jax.ShapeDtypeStruct(v.shape, jax.dtypes.canonicalize_dtype(v.dtype)) for v in values
        ]
        touched = look_at(whole, specs, element)
        again = look_at(whole, specs, element)
    _check_same(touched, again)
    if touched.tapped.keys:
        raise OptionError(
            f"{touched.tapped.keys[0]!r} is enqueued by a stage of a pipeline. Return the values "
            "from the last stage, and set outfeed to the queue."
        )
    outputs, kwargs, *_ = touched.result
    if outlet.queue is None and (outputs or kwargs):
        raise OptionError(
            f"The last stage of a pipeline returns {_texts(outputs, kwargs)}, and outfeed=None "
            "takes nothing. Set outfeed to a queue, or return nothing."
        )
    optimizer, chosen = found or (None, None)
    variables = [*touched.changed, *touched.fixed]
    own = {id(variable) for variable in (optimizer.variables if optimizer is not None else ())}
    variables = [variable for variable in variables if id(variable) not in own]
    trainable = [v for v in variables if v.trainable] if chosen is None else list(chosen)
    if optimizer is None:
        trainable = []
    elif not trainable:
        raise ModelError(
            "The stages of the pipeline use no trainable variable, and its optimizer has nothing "
            "to train. Use layers or keras.Variables in the functions, or leave out "
            "optimizer_function."
        )
    held = [
        keras.Variable(value, trainable=False, name=f"input_{k}") for k, value in enumerate(values)
    ]
    model = StagesModel(
        chain, optimizer_function, outlet, variables, trainable, held, _none, name=name
    )
    Strategy.attach(strategy, model)  # not what a subclass adds for models of users
    controller: Any = controller_of(model)
    # The functions say their stages themselves, in each trace.
    controller.stages.put(Assignment((), None, len(chain.stages)))
    model.set_pipelining_options(device_mapping=list(chain.devices), **options)
    if chain.is_concurrent:
        pipelining = replace(controller.options.pipelining, schedule_stages=chain.stages)
        controller.replace_options(replace(controller.options, pipelining=pipelining))
    replicas = controller.replicas
    if replicas > 1:
        object.__setattr__(model, "_in_replica", lambda index: in_replica(index, replicas))
    window = controller.accumulation.steps * replicas
    if optimizer is None:
        model.compile(steps_per_execution=replicas)
    else:
        model.compile(optimizer=optimizer, steps_per_execution=window)
    return _Pipeline(model, held, optimizer is not None, replicas)


def _none(index: Any) -> AbstractContextManager[Any]:
    return in_replica(index, 1)


def _elements(infeed: InfeedQueue | None, steps: int, replicas: int) -> Iterator[Any]:
    """Yields the elements of a run, a row each, with the replica that each is for."""
    done = 0
    while done < steps:
        if infeed is None:
            elements: list[Any] = [None]
        else:
            segment = infeed.take(steps - done)
            batches = jax.tree.map(np.asarray, segment.block.batches)
            elements = [
                jax.tree.map(lambda leaf, k=k: leaf[k][None], batches)
                for k in range(segment.start, segment.start + segment.count)
            ]
        for element in elements:
            yield ({"element": element, "replica": np.array([done % replicas], np.int32)},)
            done += 1


def _check_outfeed(outfeed: Any, trains: bool, loss: Any, mask: Any, accumulate: Any) -> None:
    truth("outfeed_loss", loss)
    truth("accumulate_outfeed", accumulate)
    if outfeed is not None and not isinstance(outfeed, OutfeedQueue):
        raise OptionError(f"outfeed is a millrace.OutfeedQueue. Received: {outfeed!r}.")
    if loss and mask is not None:
        raise OptionError(
            f"outfeed_loss=True and outfeed_mask={mask!r} exclude each other: the loss is "
            "delivered in place of the outputs. Remove one of them."
        )
    for option, value in (("outfeed_loss", loss or None), ("outfeed_mask", mask)):
        if value is not None and not trains:
            raise OptionError(
                f"{option}={value!r} is for training, and there is no optimizer_function. Set one, "
                f"or leave out {option}."
            )
    if accumulate and (outfeed is None or outfeed.mode is QueueMode.LAST):
        what = "there is no outfeed" if outfeed is None else "the outfeed keeps the last one only"
        raise OptionError(
            f"accumulate_outfeed=True delivers an element for each update, and {what}. Set "
            "outfeed to an OutfeedQueue of mode 'all'."
        )


def _dtype_choice(given: Any) -> DTypeChoice:
    if given is None:
        return lambda value: value.dtype
    if isinstance(given, str) or hasattr(given, "name") or isinstance(given, type):
        dtype = np.dtype(keras.backend.standardize_dtype(given))
        return lambda value: dtype
    if callable(given):
        return lambda value: keras.backend.standardize_dtype(given(value))
    raise OptionError(
        f"accumulate_outfeed_dtype is a dtype or a function of a value. Received: {given!r}."
    )


def _check_same(touched: Any, again: Any) -> None:
    first = {id(variable) for variable in (*touched.changed, *touched.fixed)}
    new = [v.path for v in (*again.changed, *again.fixed) if id(v) not in first]
    if new:
        raise ModelError(
            f"The stages of a pipeline make the variables {new} anew whenever they are called. "
            "Make layers and optimizers outside of the functions."
        )


def _specs(batches: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batches)


def _texts(outputs: Any, kwargs: Any) -> str:
    leaves = jax.tree.leaves((outputs, kwargs))
    return ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves)
