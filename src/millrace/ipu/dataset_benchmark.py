"""How fast the host supplies data.

dataset_benchmark(dataset, n, m)[0]   -> millrace.dataset_benchmark(dataset, n, m)
infeed_benchmark(queue, n, m)[0]      -> the same for the queue's data set; no device takes part
apply_options, apply_debug_options    of no effect
"""

import json
import logging
from typing import Any

from millrace.benchmark import throughput
from millrace.errors import DTypeError
from millrace.feeds.infeed_queue import InfeedQueue
from millrace.ipu.later import later
from millrace.options import whole_number

logger = logging.getLogger("millrace")


def dataset_benchmark(
    dataset: Any,
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool = True,
    apply_options: bool = True,
    do_memcpy: bool = True,
    apply_debug_options: bool = True,
) -> Any:
    """Measures a data set; an element is what it gives at once: one batch.

    Returns:
        A list of one text in JSON, `{"epochs": [...]}`.
    """
    del apply_options, apply_debug_options
    if isinstance(dataset, list | tuple | dict) or not hasattr(dataset, "__iter__"):
        raise DTypeError(
            f"dataset_benchmark() takes a data set. Received: {type(dataset).__name__}. Set "
            "tf.data.Dataset.from_tensor_slices(...), or another loader of batches."
        )
    return _measured(dataset, number_of_epochs, elements_per_epochs, print_stats, do_memcpy)


def infeed_benchmark(
    infeed_queue: Any,
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool = True,
    do_memcpy: bool = True,
) -> Any:
    """Measures the data set of an infeed queue; otherwise as `dataset_benchmark`."""
    if not isinstance(infeed_queue, InfeedQueue):
        raise DTypeError(
            f"infeed_benchmark() takes an IPUInfeedQueue. Received: {type(infeed_queue).__name__}."
            " Call dataset_benchmark() for a data set."
        )
    dataset = infeed_queue.dataset
    return _measured(dataset, number_of_epochs, elements_per_epochs, print_stats, do_memcpy)


def _measured(dataset: Any, epochs: int, elements: int, shows: bool, copies: bool) -> Any:
    whole_number("number_of_epochs", epochs, 1)
    whole_number("elements_per_epochs", elements, 1)

    def measure() -> list[str]:
        text = throughput.dataset_benchmark(
            dataset, epochs, elements, print_stats=shows, do_memcpy=copies
        )
        found = json.loads(text)["epochs"]
        for number, _ in enumerate(found, 1):
            logger.info("Epoch %d of the benchmark: %d elements.", number, elements)
        return [json.dumps({"epochs": found})]

    return later(measure)
