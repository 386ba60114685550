"""The allocator of the host keeps the memory that the tasks of a pipeline give back.

Each task allocates its results and its temporary memory, and frees them soon after. glibc gives an
array above a threshold a mapping of its own, and returns it to the system when it is freed, or cuts
the end off its heap: then the next task gets new pages, which the system clears one by one. Where
memory is kept, a stage of two transformer blocks of 256 took 50 ms of its core for a micro-batch
instead of 57.
"""

import ctypes
import functools
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of <malloc.h>
_LARGEST_THRESHOLD = 2**25  # glibc refuses more
_KEPT = 2**31 - 1  # free bytes at the end of the heap, from which on some are returned


@functools.cache
def keep_freed_memory() -> bool:
    """Lets this process keep memory that has been freed, from now on.

    Returns:
        Whether the allocator can be told so: that of glibc.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_THRESHOLD) and mallopt(_TRIM_THRESHOLD, _KEPT))
