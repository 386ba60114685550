"""The method that chooses what replicas report and share out. Their number follows from devices."""

from dataclasses import replace
from typing import Any

from millrace.arguments import refuse_unknown
from millrace.fit.controller import Controller
from millrace.options import Replication, metric_reduction, truth
from millrace.strategy.recomputation_methods import with_offload

_KNOWN = (
    "replicated_metric_reduction_method",
    "replicated_optimizer_state_sharding",
    "replicated_weight_sharding",
    "offload_weight_update_variables",
    "offload_weights",
)
_REASONS = {
    "replicas": "their number follows from the devices of the strategy and of the pipeline.",
}


def set_replication_options(
    controller: Controller,
    *,
    replicated_metric_reduction_method: Any = None,
    replicated_optimizer_state_sharding: bool | None = None,
    replicated_weight_sharding: bool | None = None,
    offload_weight_update_variables: bool | None = None,
    offload_weights: bool | None = None,
    **unknown: Any,
) -> None:
    """Chooses what several replicas report, and what they share out among them.

    Args:
        controller: of the model whose method this becomes.
        replicated_metric_reduction_method: `"mean"` (default): metrics over the batches of all
            replicas; `"sum"` of the replicas' values; `"list"` of them; `"none"`: the last
            replica's value.
        replicated_optimizer_state_sharding: True keeps on each replica's devices an equal part of
            the optimizer's values, of which it updates the weights: ZeRO-1.
        replicated_weight_sharding: True keeps of the weights a part there, too, and gathers them
            where an update's micro-batches need them: ZeRO-3.
        offload_weight_update_variables: as in `set_gradient_accumulation_options`. Each replica's
            part of values that are shared out rests in host memory.
        offload_weights: True lets each replica's part of weights that are shared out rest in host
            memory while no micro-batch needs them.
        **unknown: refused, with the nearest name.

    None keeps what was set before. A value whose axes the replicas cannot share out equally stays
    whole.

    Raises:
        OptionError: for a value that is none of these, an unknown option, or if something is to
            rest in host memory and the devices have none, or weights that are not shared out.
    """
    refuse_unknown("set_replication_options", unknown, _KNOWN, _REASONS)
    replication = controller.setup.options.replication
    if replicated_metric_reduction_method is not None:
        method = metric_reduction(replicated_metric_reduction_method)
        replication = replace(replication, metrics=method)
    replication = with_sharding(
        replication, replicated_optimizer_state_sharding, replicated_weight_sharding
    )
    offload = with_offload(
        controller,
        replication,
        offload_weight_update_variables=offload_weight_update_variables,
        offload_weights=offload_weights,
    )
    controller.put_options(
        replace(controller.setup.options, replication=replication, offload=offload)
    )


def with_sharding(
    replication: Replication, optimizer_state: bool | None, weights: bool | None
) -> Replication:
    """Returns `replication` with other choices of what is shared out; None keeps what was set."""
    if optimizer_state is not None:
        chosen = truth("replicated_optimizer_state_sharding", optimizer_state)
        replication = replace(replication, shard_optimizer_state=chosen)
    if weights is not None:
        chosen = truth("replicated_weight_sharding", weights)
        replication = replace(replication, shard_weights=chosen)
    return replication
