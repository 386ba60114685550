"""Data sets of a whole number of groups of elements."""

from typing import Any

from millrace.extend import whole_number


def BufferDataset(input_dataset: Any, buffer_size: int) -> Any:  # noqa: N802  # a class on the IPU
    """Returns a data set without the elements at its end that are no whole `buffer_size`.

    Args:
        input_dataset: a data set.
        buffer_size: number of elements.
    """
    size, number = whole_number("buffer_size", buffer_size, 1), int(input_dataset.cardinality())
    if number >= 0:
        return input_dataset.take(number - number % size)
    return input_dataset.batch(size, drop_remainder=True).unbatch()
