"""`millrace.pipeline`: runs functions as the stages of a pipeline.

functions, options, shapes -> an existing pipeline, or a new one    build.py
elements of the infeed, in order -> fit | predict of its model -> outfeed
"""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from millrace.api.function_pipelines.build import Pipeline, make_pipeline
from millrace.api.function_pipelines.chain import (
    DeviceMapping,
    FunctionChain,
    StageFunctions,
    as_list,
    check_captures,
    make_chain,
)
from millrace.api.function_pipelines.model import (
    OptimizerFunction,
    PipelineFunctions,
    ResultOutfeed,
)
from millrace.api.function_pipelines.update_sums import DTypeChoice, UpdateSums, dtype_function
from millrace.api.own_loops.host_loop import require_host
from millrace.api.own_loops.iteration import specs_of
from millrace.api.own_loops.log_subject import identity
from millrace.api.strategy.strategy import Strategy, strategy_in_scope
from millrace.base.options import QueueMode, truth, whole_number
from millrace.base.threads.made_once import MadeOnce
from millrace.errors import OptionError, PlanError
from millrace.programs.feeds.infeed_queue import InfeedQueue
from millrace.programs.taps.outfeed_queue import OutfeedQueue

KEPT = 16  # pipelines, with their programs


def pipeline(
    stages: StageFunctions,
    micro_batches: int,
    *,
    updates: int = 1,
    inputs: object = None,
    infeed: InfeedQueue | None = None,
    outfeed: OutfeedQueue | None = None,
    optimizer_function: OptimizerFunction | None = None,
    device_mapping: DeviceMapping | None = None,
    outfeed_loss: bool = False,
    outfeed_mask: Sequence[bool] | None = None,
    accumulate_outfeed: bool = False,
    accumulate_outfeed_dtype: DTypeChoice | None = None,
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

    The functions use stock Keras layers and variables. All results go through the outfeed. If the
    strategy has more devices than the pipeline needs, it runs as replicas; element j of the infeed
    goes to replica `j % replicas`.

    Args:
        stages: functions. The first is called with `inputs`, followed by one element of the
            infeed: the items of a tuple by position, those of a dict by name. Each later one is
            called with the results of the one before. A list of functions is one stage whose
            members run at the same time with the same arguments; their results are passed on in
            the order of the list.
        micro_batches: elements in one update of each replica, or without an optimizer function
            in one run.
        updates: number of weight updates to run.
        inputs: values for this run, such as a learning rate: one or a list.
        infeed: supplies one element for each micro-batch.
        outfeed: gets the results of the last stage, once for each micro-batch.
        optimizer_function: called with the results of the last stage; returns
            `(optimizer, loss)`, or `(optimizer, loss, variables)` to train only these variables.
            None trains nothing.
        device_mapping: index in `strategy.devices` of each function's device, in the structure
            of `stages`. None gives each stage a device, in order; with a V-shaped schedule two
            stages share one.
        outfeed_loss: True enqueues the loss in place of the outputs.
        outfeed_mask: for each output, True to leave it out of the outfeed.
        accumulate_outfeed: True enqueues one element for each update: the sum over its
            micro-batches.
        accumulate_outfeed_dtype: dtype of these sums: None for that of the value, a dtype, or a
            function of the value.
        strategy: whose devices to use; None for the strategy of the scope.
        name: of the pipeline, for the compile log.
        **options: of `model.set_pipelining_options`, such as `pipeline_schedule`,
            `gradient_accumulation_reduction_method` and `recomputation_mode`.

    Raises:
        OptionError: for stages, devices or options that do not fit together.
        LoopError: if a stage does not take the results of the one before.
        PlanError: without a strategy.
        DataError: if the data ends too early. Complete updates before that have been applied.
    """
    require_host()
    strategy = strategy or _strategy_of_scope()
    _check_types(strategy, infeed, optimizer_function)
    serialization = whole_number(
        "batch_serialization_iterations", options.get("batch_serialization_iterations", 1), 1
    )
    chain = make_chain(stages, device_mapping, options.get("pipeline_schedule"), serialization)
    check_captures(chain.functions)
    trains = optimizer_function is not None
    update_steps = whole_number("micro_batches", micro_batches, 1) * serialization
    whole_number("updates", updates, 0)
    _check_outfeed(outfeed, trains, outfeed_loss, outfeed_mask, accumulate_outfeed)
    values = [np.asarray(value) for value in as_list(inputs)]
    element = None if infeed is None else specs_of(infeed.block().batches)
    functions, alive = _identities(chain, optimizer_function)
    key = (
        functions,
        chain.levels,
        chain.mapping,
        update_steps,
        repr(element),
        repr([(value.shape, value.dtype) for value in values]),
        id(strategy),
        id(outfeed),
        (outfeed_loss, repr(outfeed_mask), accumulate_outfeed, id(accumulate_outfeed_dtype)),
        repr(sorted(options.items(), key=lambda item: item[0])),
        name,
    )
    alive += [strategy, outfeed, accumulate_outfeed_dtype, options]

    def make() -> Pipeline:
        queue = outfeed
        if queue is not None and accumulate_outfeed:
            queue = UpdateSums(queue, update_steps, dtype_function(accumulate_outfeed_dtype))
        result_outfeed = ResultOutfeed(queue, outfeed_loss, outfeed_mask)
        all_options = {"gradient_accumulation_steps_per_replica": micro_batches, **options}
        return make_pipeline(
            PipelineFunctions(chain, optimizer_function, result_outfeed),
            strategy,
            name,
            all_options,
            values,
            element,
        )

    built, _ = _pipelines.get(key, lambda: (make(), alive))
    built.run(values, infeed, update_steps, updates)


_pipelines = MadeOnce[tuple[Pipeline, object]](KEPT)  # with objects whose addresses are in the key


def _strategy_of_scope() -> Strategy:
    strategy = strategy_in_scope()
    if strategy is None:
        raise PlanError(
            "pipeline() runs on the devices of a strategy, and there is none. Call it within "
            "`with strategy.scope():`, or set strategy=millrace.Strategy()."
        )
    return strategy


def _identities(
    chain: FunctionChain, optimizer_function: OptimizerFunction | None
) -> tuple[Hashable, list[object]]:
    """Returns a key of the functions, and the objects that must outlive it."""
    functions = (*chain.functions, optimizer_function)
    pairs = [identity(getattr(function, "__wrapped__", function)) for function in functions]
    return tuple(key for key, _ in pairs), [objects for _, objects in pairs]


def _check_types(strategy: object, infeed: object, optimizer_function: object) -> None:
    if not isinstance(strategy, Strategy):
        raise OptionError(
            f"strategy must be a millrace.Strategy. Received: {strategy!r}. Set "
            "strategy=millrace.Strategy(), or leave it out in `with strategy.scope():`."
        )
    if infeed is not None and not isinstance(infeed, InfeedQueue):
        raise OptionError(
            f"infeed is a millrace.InfeedQueue. Received: {type(infeed).__name__}. Set "
            "infeed=millrace.InfeedQueue(dataset), created once, outside of the pipeline."
        )
    if optimizer_function is not None and not callable(optimizer_function):
        raise OptionError(
            "optimizer_function must be a function of the results of the last stage. Received: "
            f"{optimizer_function!r}. Set optimizer_function=lambda loss: (optimizer, loss)."
        )


def _check_outfeed(
    outfeed: object, trains: bool, loss: object, mask: object, accumulate: object
) -> None:
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
        why = "there is no outfeed" if outfeed is None else "the outfeed keeps only the last one"
        raise OptionError(
            f"accumulate_outfeed=True enqueues an element for each update, but {why}. Set "
            "outfeed to an OutfeedQueue of mode 'all'."
        )
