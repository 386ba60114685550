"""Measurements of the host's supply of data.

dataset_benchmark(dataset, n, m)[0]   -> millrace.dataset_benchmark(dataset, n, m)
infeed_benchmark(queue, n, m)[0]      -> the same for the queue's data set; no device takes part
apply_options, apply_debug_options    without effect
"""

import json
from typing import Any, TypeAlias

import millrace
from millrace import InfeedQueue
from millrace.errors import DTypeError
from millrace.extend import whole_number
from millrace_ipu.ipu.deferral import call_or_defer
from millrace_ipu.tensorflow.graph_mode import Deferred


class _Texts(list[str]):
    """A list of texts with the method `numpy()` of eager tensors."""

    def numpy(self) -> list[str]:
        """Returns the list."""
        return self


Report: TypeAlias = list[str] | Deferred  # one text in JSON


def dataset_benchmark(
    dataset: Any,
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool = True,
    apply_options: bool = True,
    do_memcpy: bool = True,
    apply_debug_options: bool = True,
) -> Report:
    """Measures a data set. Each of its elements is one batch.

    Args:
        dataset: as for `millrace.dataset_benchmark`, but no list, tuple or dict of arrays.
        number_of_epochs: epochs to time, each by itself.
        elements_per_epochs: elements of each epoch.
        print_stats: whether to print elements and bytes per second of each epoch.
        apply_options: without effect.
        do_memcpy: whether to copy every element once, as training on it would.
        apply_debug_options: without effect.

    Returns:
        A list of one text in JSON, an object with the key `epochs`.

    Raises:
        OptionError: if a number is below 1.
        DTypeError: if `dataset` is no data set.
    """
    if isinstance(dataset, list | tuple | dict) or not hasattr(dataset, "__iter__"):
        raise DTypeError(
            f"dataset_benchmark() takes a data set. Received: {type(dataset).__name__}. Set "
            "tf.data.Dataset.from_tensor_slices(...), or another loader of batches."
        )
    whole_number("number_of_epochs", number_of_epochs, 1)
    whole_number("elements_per_epochs", elements_per_epochs, 1)

    def measure() -> list[str]:
        text = millrace.dataset_benchmark(
            dataset,
            number_of_epochs,
            elements_per_epochs,
            print_stats=print_stats,
            do_memcpy=do_memcpy,
        )
        return _Texts([json.dumps({"epochs": json.loads(text)["epochs"]})])

    return call_or_defer(measure)


def infeed_benchmark(
    infeed_queue: InfeedQueue,
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool = True,
    do_memcpy: bool = True,
) -> Report:
    """Measures the data set of an infeed queue, as `dataset_benchmark` does."""
    if not isinstance(infeed_queue, InfeedQueue):
        raise DTypeError(
            f"infeed_benchmark() takes an IPUInfeedQueue. Received: {type(infeed_queue).__name__}."
            " Call dataset_benchmark() for a data set."
        )
    return dataset_benchmark(
        infeed_queue.dataset, number_of_epochs, elements_per_epochs, print_stats, True, do_memcpy
    )
