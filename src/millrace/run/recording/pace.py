"""The pace of records: frequent at first, and rarer the longer a run takes.

run since     1 s       100 s     1 hour     1 day
a line each   0.05 s    0.1 s     3.6 s      86 s       samples: some 8,500 in a day
"""

import time

SECONDS = 0.05  # between two samples, at least
SHARE = 1 / 1000  # of the run's time so far
SUMMARY_SECONDS, SUMMARY_SHARE = 5.0, 1 / 10  # between two lines about a loop that is running
EPOCHS = 5000  # of a fit, after which one of those between two samples is written
MANY = 200  # loops, after which short ones of one model are written as one
SHORT_SECONDS, SHORT_SHARE = 1.0, 1 / 200  # a loop that ends before that is short

_begin = time.perf_counter() - time.time()  # of 1970, on the clock of `perf_counter`
_started = time.perf_counter()


def seconds_since_1970(clock: float) -> float:
    """Returns a time of `time.perf_counter` as one of `time.time`."""
    return clock - _begin


def between_samples(clock: float) -> float:
    """Returns the seconds from one sample to the next."""
    return max(SECONDS, (clock - _started) * SHARE)


def is_short(seconds: float) -> bool:
    """Whether a loop that took so long is no longer written as one of its own."""
    return seconds < max(SHORT_SECONDS, (time.perf_counter() - _started) * SHORT_SHARE)


def between_summaries(clock: float) -> float:
    """Returns the seconds from one line about a loop to the next."""
    return max(SUMMARY_SECONDS, (clock - _started) * SUMMARY_SHARE)
