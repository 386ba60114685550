"""The native options of an extended model, made of its settings.

set_gradient_accumulation_options
    dtype                                -> Accumulation.dtype
set_pipelining_options
    pipeline_schedule                    -> Pipelining.schedule, by its native name
    gradient_accumulation_dtype          -> Pipelining.dtype
    *_poplar_options                     -> Pipelining.forward_options, backward_, update_options
    batch_serialization_iterations       -> Pipelining.batch_serialization
    recomputation_mode                   -> Recomputation.mode, if IPUConfig.allow_recompute
    offload_*                            -> Offload
    replicated_weight_sharding           -> Replication.shard_weights
either of these
    replicated_optimizer_state_sharding  -> Replication.shard_optimizer_state
set_replication_options                  -> Replication.metrics
set_infeed_queue_options
    prefetch_depth                       -> Feed.prefetch_depth
    max_block_bytes, max_resident_bytes  -> the same of Feed; the IPU did not have these
    optimise_latency, optimize_latency   without effect
set_outfeed_queue_options                without effect: results wait on the host, without limit
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from millrace.errors import OptionError
from millrace.extend import (
    Accumulation,
    Controller,
    Feed,
    Offload,
    Options,
    Pipelining,
    Recomputation,
    RecomputationMode,
    refuse_unknown,
    whole_number,
)
from millrace_ipu.ipu.accumulator_dtype import accumulator_dtype
from millrace_ipu.ipu.config import current_system
from millrace_ipu.ipu.keras.extensions.settings import Settings, rules_of
from millrace_ipu.ipu.ops.pipeline_options import (
    BACKWARD,
    FORWARD,
    options_of_stages,
    options_of_update,
)
from millrace_ipu.ipu.ops.schedules import NATIVE, recomputation_of
from millrace_ipu.tensorflow.no_operation import warn_no_effect

_LATENCY = ("optimise_latency", "optimize_latency")
_BYTES = ("max_block_bytes", "max_resident_bytes")
_FEED = ("prefetch_depth", *_BYTES)
_INFEED = ("prefetch_depth", *_LATENCY, *_BYTES)
_OUTFEED = ("buffer_depth", *_LATENCY)


def put(controller: Controller, settings: Settings, keep_functions: bool = False) -> None:
    """Puts new settings in force.

    Args:
        controller: of the model.
        settings: the new ones.
        keep_functions: whether compiled functions stay, which do not depend on the change.
    """
    options = native_options(settings, controller.setup.options, current_system().allow_recompute)
    controller.put_rules(replace(rules_of(controller), settings=settings))
    controller.put_options(options, keep_functions)


def native_options(settings: Settings, before: Options, recomputes: bool) -> Options:
    """Returns the native options.

    Args:
        settings: of the model.
        before: the native options so far; those without a setter stay.
        recomputes: whether the configuration allows recomputation.

    Raises:
        DTypeError: for a setting of another type.
        UnsupportedError: for a recomputation mode that does not go with the schedule.
    """
    own, more = settings.accumulation, settings.pipelining.more
    offloads = settings.of_either("offload_weight_update_variables")
    shards = settings.of_either("replicated_optimizer_state_sharding")
    return replace(
        before,
        accumulation=Accumulation(
            steps=own.steps or 1,
            reduction=own.reduction,
            dtype=accumulator_dtype(own.more.get("dtype")),
        ),
        pipelining=_pipelining(settings, before.pipelining),
        replication=replace(
            before.replication,
            metrics=settings.metrics,
            shard_optimizer_state=bool(shards),
            shard_weights=bool(more.get("replicated_weight_sharding")),
        ),
        recomputation=_recomputation(settings, recomputes),
        offload=Offload(
            optimizer_state=offloads,
            activations=more.get("offload_activations"),
            accumulators=more.get("offload_gradient_accumulation_buffers"),
            weights=more.get("offload_weights"),
        ),
        feed=_feed(settings),
        asynchronous_callbacks=settings.asynchronous,
    )


def _pipelining(settings: Settings, before: Pipelining) -> Pipelining:
    own = settings.pipelining

    def stage_options(stages: str) -> tuple[Mapping[str, Any], ...] | None:
        name = f"{stages}_poplar_options"
        options = options_of_stages(name, own.more.get(name))
        return None if options is None else tuple(options)

    return replace(
        before,
        steps=own.steps,
        reduction=own.reduction,
        dtype=accumulator_dtype(own.more.get("gradient_accumulation_dtype")),
        schedule=NATIVE[settings.schedule],
        device_mapping=settings.device_mapping,
        forward_options=stage_options(FORWARD),
        backward_options=stage_options(BACKWARD),
        update_options=options_of_update(
            "weight_update_poplar_options", own.more.get("weight_update_poplar_options")
        ),
        batch_serialization=settings.serialization,
    )


def _recomputation(settings: Settings, recomputes: bool) -> Recomputation:
    mode = settings.pipelining.more.get("recomputation_mode")
    native_mode = recomputation_of(mode, settings.schedule, recomputes)
    if mode is None and recomputes:
        # Equal to the IPU's default in a pipeline; in other models, checkpoints take effect.
        return Recomputation(mode=RecomputationMode.AUTO)
    return Recomputation(mode=RecomputationMode(native_mode))


def _feed(settings: Settings) -> Feed:
    """Returns the native options of the infeed, without values that `check_queues` refuses."""
    options = settings.infeed.items()
    return Feed(**{name: value for name, value in options if name in _FEED and _fits(name, value)})


def _fits(name: str, value: object) -> bool:
    least, most = (1, 255) if name == "prefetch_depth" else (0, None)
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return value >= least and (most is None or value <= most)


def check_queues(settings: Settings) -> None:
    """Refuses options that the queues do not have.

    Raises:
        OptionError: for an unknown option, or a depth out of range.
    """
    for setter, options, names, depth, most in (
        ("set_infeed_queue_options", settings.infeed, _INFEED, "prefetch_depth", 255),
        ("set_outfeed_queue_options", settings.outfeed, _OUTFEED, "buffer_depth", None),
    ):
        refuse_unknown(setter, [name for name in options if name not in names], names, {})
        value = whole_number(depth, options.get(depth, 1), 1)
        if most is not None and value > most:
            raise OptionError(
                f"{depth} must be at most {most}. Received: {value}. Set {depth}={most} or less in "
                f"model.{setter}()."
            )
    if settings.outfeed:
        warn_no_effect(
            "buffer_depth", "Results wait on the host until they are read, without limit."
        )
