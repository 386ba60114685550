"""How many devices one replica of a pipeline takes up: a power of two, as IPUs are wired.

device_mapping=[0, 1, 2]     -> 4 devices, of which one is idle
"""

from collections.abc import Sequence

from millrace.errors import OptionError


def devices_of_replica(stages: int, mapping: Sequence[int], number: int) -> int:
    """Returns how many devices one replica of a pipeline takes up: a power of two.

    Args:
        stages: their number.
        mapping: the device of each within a replica.
        number: of devices of the strategy.

    Raises:
        OptionError: if the mapping is of another number of stages, or the devices are not a whole
            number of replicas.
    """
    if len(mapping) != stages:
        raise OptionError(
            f"device_mapping={list(mapping)} has {len(mapping)} entries, and the model has "
            f"{stages} pipeline stages. Give one device for each in set_pipelining_options()."
        )
    used = max(mapping) + 1
    size = 1 << (used - 1).bit_length()
    if number < size or number % size:
        raise OptionError(
            f"The pipeline takes {used} devices, and one replica {size}, a power of two. The "
            f"strategy has {number}. Set auto_select_ipus to a multiple of {size}, or let stages "
            "share devices with device_mapping in set_pipelining_options()."
        )
    return size
