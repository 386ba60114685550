"""`millrace.pipeline`: functions as the stages of a pipeline, run where it is called.

micro-batches   3 1 2 2 | 5 0 1 1        two updates of four
queue                 8         7

functions, options, shapes -> the pipeline that is there, or a new one    making.py
elements of the infeed, in order -> fit | predict of its model -> outfeed
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import keras
import numpy as np

from millrace.errors import OptionError, PlanError
from millrace.feeds.infeed_queue import InfeedQueue
from millrace.function_pipelines.build import Pipeline, make_pipeline
from millrace.function_pipelines.chain import as_list, check_captures, make_chain
from millrace.function_pipelines.model import Outlet
from millrace.loops.host_driven import require_host
from millrace.loops.log_subject import identity
from millrace.options import QueueMode, truth, whole_number
from millrace.strategy.strategy import Strategy, strategy_in_scope
from millrace.taps.outfeed import OutfeedQueue
from millrace.threads.made_once import MadeOnce

DTypeChoice = Callable[[Any], Any]  # of a value: the dtype to add it up in


class UpdateSums(OutfeedQueue):
    """Takes an element of every micro-batch, and gives their sums to another queue.

    They are added in the order of the micro-batches, in the chosen dtype, on the host.
    """

    def __init__(self, queue: OutfeedQueue, window: int, dtype_of: DTypeChoice):
        """Makes one for one queue.

        Args:
            queue: gets an element for each update.
            window: elements of an update.
            dtype_of: of each value.
        """
        super().__init__("all")
        self._queue, self._window, self._dtype_of = queue, window, dtype_of
        self._sums: list[Any] | None = None
        self._count = 0

    def enqueue(self, value: Any) -> None:
        """Carries `value` out of the program, and takes note that the other queue is used."""
        super().enqueue(value)
        self._queue.mark_enqueued()

    def expect(self) -> None:
        """Takes note that a part is on its way."""
        self._queue.expect()

    def fail(self, error: BaseException) -> None:
        """Takes note that a part will not come."""
        self._sums, self._count = None, 0
        self._queue.fail(error)

    def receive(self, value: Any, elements: int) -> None:
        """Takes a part in, and passes on the sums of the updates that are complete."""
        leaves, tree = jax.tree.flatten(value)
        dtypes = [np.dtype(self._dtype_of(leaf)) for leaf in leaves]
        done: list[list[Any]] = []
        for k in range(elements):
            one = [np.asarray(leaf[k], dtype) for leaf, dtype in zip(leaves, dtypes, strict=True)]
            if self._sums is None:
                self._sums = one
            else:
                with np.errstate(over="ignore"):  # a narrow dtype overflows to infinity
                    self._sums = [
                        np.asarray(a + b, a.dtype) for a, b in zip(self._sums, one, strict=True)
                    ]
            self._count += 1
            if self._count == self._window:
                done.append(self._sums)
                self._sums, self._count = None, 0
        stacked = [np.stack(column) for column in zip(*done, strict=True)]
        self._queue.receive(jax.tree.unflatten(tree, stacked) if done else (), len(done))


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
    casts_gradients: bool = True,
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
        updates: number of weight updates to run.
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
        casts_gradients: False calls the optimizer's own `apply_gradients` with gradients in the
            dtype of their accumulators, which it then has to cast to that of the variables.
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
    _check_parts(strategy, infeed, optimizer_function)
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
        truth("casts_gradients", casts_gradients),
        name,
    )
    alive = [parts, strategy, outfeed, accumulate_outfeed_dtype, options]

    def make() -> Pipeline:
        queue = outfeed
        if queue is not None and accumulate_outfeed:
            queue = UpdateSums(queue, window, _dtype_choice(accumulate_outfeed_dtype))
        outlet = Outlet(queue, outfeed_loss, outfeed_mask)
        return make_pipeline(
            chain, optimizer_function, casts_gradients, outlet, values, element, strategy, name,
            {"gradient_accumulation_steps_per_replica": micro_batches, **options},
        )  # fmt: skip

    made, _ = _pipelines.get(key, lambda: (make(), alive))
    made.run(values, infeed, window, updates)


_pipelines = MadeOnce[tuple[Pipeline, Any]](KEPT)  # with what their keys identify by address


def _check_parts(strategy: Any, infeed: Any, optimizer_function: Any) -> None:
    if not isinstance(strategy, Strategy):
        raise OptionError(
            f"strategy must be a millrace.Strategy. Received: {strategy!r}. Set "
            "strategy=millrace.Strategy(), or leave it out in `with strategy.scope():`."
        )
    if infeed is not None and not isinstance(infeed, InfeedQueue):
        raise OptionError(
            f"infeed is a millrace.InfeedQueue. Received: {type(infeed).__name__}. Set "
            "infeed=millrace.InfeedQueue(dataset), made once, outside of the pipeline."
        )
    if optimizer_function is not None and not callable(optimizer_function):
        raise OptionError(
            "optimizer_function must be a function of what the last stage returns. Received: "
            f"{optimizer_function!r}. Set optimizer_function=lambda loss: (optimizer, loss)."
        )


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


def _specs(batches: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batches)
