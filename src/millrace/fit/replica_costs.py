"""Says after a fit that its replicas cost more than they bring, and by how much.

    own time of an update    computed by each replica, at the same time        own
    sum of its gradients     copies, waiting for the others, additions         sum
    rows per second          of R replicas, compared with one process          R * own / (own + sum)

The times are medians of the fit's own updates, so they are known only where the host adds up
(`processes/shared_memory.py`).
"""

import contextlib
import logging
import math
import statistics
from collections.abc import Callable, Iterator, Sequence

from millrace.fit.setup import Setup
from millrace.plan import Mode
from millrace.processes.agreement import process_index
from millrace.processes.shared_memory import SumTimes, shared_memory

logger = logging.getLogger("millrace")

_MIN_UPDATES = 20  # updates of which medians are taken
_SHARE = 0.75  # of the speed of replicas without sums, for which the message names a setting


@contextlib.contextmanager
def replica_costs_logged(
    setup: Setup, mode: Mode | None, is_new: Callable[[str], bool]
) -> Iterator[None]:
    """Surrounds a loop, and warns at its end, once for each model.

    Args:
        setup: of the model.
        mode: of the loop; only training is measured.
        is_new: returns True the first time that it is called with a note.
    """
    memory = shared_memory()
    if mode is not Mode.TRAIN or memory is None or not setup.spans_processes:
        yield
        return
    memory.take_times()
    yield
    text = replica_costs(memory.take_times(), setup.replicas, setup.accumulation.steps)
    if text and process_index() == 0 and is_new(f"replica costs: {setup.model.name}"):
        logger.warning("%s: %s", setup.model.name, text)


def replica_costs(times: Sequence[SumTimes], replicas: int, accumulation: int) -> str | None:
    """Returns a message about replicas that cost more than they bring; None if they do not.

    Args:
        times: of the updates of one process.
        replicas: their number.
        accumulation: micro-batches of each replica in an update.
    """
    if len(times) < _MIN_UPDATES:
        return None
    own = statistics.median(each.own_seconds for each in times)
    added = statistics.median(each.sum_seconds for each in times)
    speed = replicas * own / (own + added)
    if speed >= 1:
        return None
    # `factor` times the micro-batches: own * factor / (own * factor + added) = share
    factor = math.ceil(_SHARE / (1 - _SHARE) * added / own)
    return (
        f"replicas cost more than they bring. An update takes {1e6 * (own + added):.0f} us: this "
        f"process computes for {1e6 * own:.0f} us, and takes {1e6 * added:.0f} us for the sum of "
        f"the gradients of {replicas} processes. Together they train {speed:.2f}x as many rows per "
        f"second as one process. Set gradient_accumulation_steps_per_replica="
        f"{accumulation * factor} in model.set_gradient_accumulation_options(), for about "
        f"{_SHARE * replicas:.1f}x, or train in one process."
    )
