"""Private Keras: the workers of a `PyDataset`. Checked on keras 3.13.0, 3.14.0 and 3.15.1.

`end_workers`       Keras ends them at the end of an epoch only, and never where two of their
                    batches fail.
`read_ahead_again`  they read batches before the first epoch, with which Keras begins it.
"""

import contextlib
import queue
import time
from typing import Any

from keras.src.trainers.data_adapters.data_adapter import DataAdapter

_READ_AHEAD_SECONDS = 1.0  # in which workers fill their queue
_POOLS = "_millrace_pools"  # of an enqueuer: those that it has started
_END_SECONDS = 5.0  # longest wait for the thread that hands out the work


def end_workers(adapter: DataAdapter) -> None:
    """Ends the threads and processes that make the batches of a `PyDataset`, if some are left.

    Batches that they have made are dropped. A process that hangs is killed; a thread that hangs
    can only be left to itself.
    """
    enqueuer = getattr(adapter, "enqueuer", None)
    if enqueuer is None:
        return
    hands_out = enqueuer.run_thread
    enqueuer.running = False
    pools = enqueuer.__dict__.get(_POOLS, [])
    # It may wait for room in the queue, and sees only then that it should end.
    deadline = time.monotonic() + _END_SECONDS
    while hands_out is not None and hands_out.is_alive() and time.monotonic() < deadline:
        _empty_queues(enqueuer)
        hands_out.join(0.005)
    _empty_queues(enqueuer)
    for pool in pools:
        pool.terminate()
        for result in list(pool._cache.values()):  # nobody else ends the wait for one
            result._set(0, (False, RuntimeError("The workers of the data set were ended.")))
    pools.clear()
    enqueuer.run_thread = None


def _empty_queues(enqueuer: Any) -> None:
    for each in (enqueuer.future_queue, enqueuer.ready_queue):
        with contextlib.suppress(queue.Empty):
            while True:
                each.get_nowait()


def remember_pools(adapter: DataAdapter) -> None:
    """Remembers the pools of workers that Keras starts, which it does not keep."""
    enqueuer = getattr(adapter, "enqueuer", None)
    if enqueuer is None:
        return
    start, pools = enqueuer.executor_fn, []
    enqueuer.__dict__[_POOLS] = pools

    def start_and_remember(sequences: object) -> Any:
        pool = start(sequences)
        pools[:] = [pool]  # the one before has ended with its epoch
        return pool

    enqueuer.executor_fn = start_and_remember


def has_read_ahead(adapter: DataAdapter) -> bool:
    """Whether workers of a PyDataset have read batches before the first epoch, to build the model.

    Keras begins every epoch with the batches that were read in the one before.
    """
    enqueuer = getattr(adapter, "enqueuer", None)
    return enqueuer is not None and not enqueuer.ready_queue.empty()


def read_ahead_again(adapter: DataAdapter) -> None:
    """Lets workers read the batches once more with which the next epoch begins.

    How many they read of a larger data set than their queue holds depends on time, in Keras, too.
    """
    enqueuer: Any = getattr(adapter, "enqueuer", None)
    ready: queue.Queue[Any] = enqueuer.ready_queue
    number = ready.qsize()
    while not ready.empty():
        ready.get_nowait()
    epoch = getattr(adapter, "_epoch", None)  # from Keras 3.16 on
    enqueuer.start(*([] if epoch is None else [epoch]))
    enqueuer.run_thread.join(_READ_AHEAD_SECONDS)
    enqueuer.stop()
    while ready.qsize() > number:  # the others were drawn in the epoch before
        ready.get_nowait()
