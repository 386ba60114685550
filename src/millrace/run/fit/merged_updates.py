"""The arguments of `fit` where the micro-batches of an update are computed as one batch.

`batch_size`, `steps_per_epoch` and `steps_per_execution` are given in micro-batches. A step is then
a batch with the rows of all micro-batches of an update on one replica.
"""

from collections.abc import Mapping
from typing import Any

from millrace._compat.keras_data import BATCH_SIZE
from millrace.errors import PlanError
from millrace.programs.plan import Mode
from millrace.run.fit.checks import check_steps
from millrace.run.fit.setup import Setup


def merged_arguments(setup: Setup, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of Keras's epoch iterator for merged batches.

    Raises:
        PlanError: if an epoch or an execution would end within an update.
    """
    merges, replicas = setup.merges(Mode.TRAIN), setup.replicas
    update = merges * replicas
    steps, epoch = arguments.get("steps_per_execution", 1), arguments.get("steps_per_epoch")
    if steps > 1:
        whole = steps * setup.rules.replicas_as_one(setup)
        check_steps(setup.accumulation_as_set, Mode.TRAIN, whole, None, replicas)
    if epoch is not None and epoch % update:
        raise PlanError(
            f"steps_per_epoch={epoch} is not a whole number of weight updates of {update} "
            "micro-batches, which synchronized_batch_statistics=True computes as one batch. Set "
            f"steps_per_epoch={max(epoch // update, 1) * update}, or leave it out: the last update "
            "of the data may be shorter."
        )
    return {
        **arguments,
        "batch_size": (arguments.get("batch_size") or BATCH_SIZE) * merges,
        "steps_per_epoch": None if epoch is None else epoch // merges,
        "steps_per_execution": max(steps // merges, 1),
    }
