"""The method that chooses what is computed again, and what the other methods say of memory."""

from dataclasses import replace
from typing import Any

from millrace.arguments import refuse_unknown
from millrace.errors import OptionError
from millrace.fit.controller import Controller
from millrace.fit.offloading import NAMES, check_offload
from millrace.options import (
    Offload,
    Recomputation,
    RecomputationMode,
    Replication,
    bytes_or_share,
    recomputation_mode,
    truth,
)

_REASONS = {
    "checkpoints": (
        "put millrace.layers.RecomputationCheckpoint() where values are to be kept, or set "
        "budget= and let millrace choose."
    ),
    "policy": "set budget= and let millrace choose what is kept, or mode='auto' with boundaries.",
}


def set_recomputation_options(
    controller: Controller, *, mode: Any = "auto", budget: Any = None, **unknown: Any
) -> None:
    """Lets backward compute again what forward would have kept for it.

    Losses, weights and dropout masks stay those of plain training.

    Args:
        controller: of the model whose method this becomes.
        mode: `"none"` turns it off. `"recompute_and_backpropagate_interleaved"` computes again,
            segment by segment, what lies between two `RecomputationCheckpoint` layers.
            `"recompute_then_backpropagate"` computes a pipeline stage again as a whole. `"auto"`
            is the former for a model in one piece and for the schedule `"sequential"`, and the
            latter for all others.
        budget: the peak that training may reach on a device: bytes, a text such as `"1.5GB"`, or a
            share above 0 and up to 1 of what it takes without recomputation. millrace then
            chooses what is kept, in the fewest additional FLOPs. None is no budget.
        **unknown: refused, with the nearest name.

    Raises:
        OptionError: for an unknown mode, a budget that is none of these, or an unknown option.
    """
    refuse_unknown("set_recomputation_options", unknown, ("mode", "budget"), _REASONS)
    chosen = recomputation_mode("none" if mode is None else mode)
    if budget is not None and chosen is not RecomputationMode.AUTO:
        raise OptionError(
            f"mode={chosen.value!r} says what is computed again, and budget={budget!r} lets "
            "millrace choose. Set one of them, and leave the other out."
        )
    limit = None if budget is None else bytes_or_share(budget)
    recomputation = Recomputation(mode=chosen, budget=limit)
    controller.put_options(replace(controller.setup.options, recomputation=recomputation))


def with_offload(
    controller: Controller,
    replication: Replication,
    *,
    offload_weight_update_variables: Any = None,
    offload_activations: Any = None,
    offload_gradient_accumulation_buffers: Any = None,
    offload_weights: Any = None,
) -> Offload:
    """Returns the model's choices of what rests in host memory with others; None keeps them.

    Raises:
        OptionError: for a value that is neither True nor False, or one that the devices or the
            `replication` do not allow.
    """
    given = {
        "optimizer_state": offload_weight_update_variables,
        "activations": offload_activations,
        "accumulators": offload_gradient_accumulation_buffers,
        "weights": offload_weights,
    }
    chosen = {
        field: truth(NAMES[field], value) for field, value in given.items() if value is not None
    }
    offload = replace(controller.setup.options.offload, **chosen)
    check_offload(offload, replication, controller.setup.devices)
    return offload
