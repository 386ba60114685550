"""The lookup of a thread in the cache, and its result.

JAX reports each hit in the thread of the compilation, for its own files as for a store of ours, and
after XLA has taken the bytes: bytes that XLA refuses count as a miss.
"""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import jax

from millrace._compat.jax_cache import asks_any
from millrace.base.records.cache import EntryLabels
from millrace.base.threads.scoped_value import ScopedValue
from millrace.compilation.cache.listeners import listeners

_REQUEST = "/jax/compilation_cache/compile_requests_use_cache"
_HIT = "/jax/compilation_cache/cache_hits"


@dataclass(slots=True)
class Lookup:
    """One compilation, which the cache may make unnecessary."""

    labels: EntryLabels
    hit: bool = False
    layers: tuple[str, ...] = ()  # of the model in the file, of a hit
    entry: bytes = b""  # the bytes that JAX had put; empty if JAX has files of its own
    is_compiling: bool = False  # by XLA, after a miss

    def missed(self) -> None:
        """Tells the listeners, once, that XLA compiles it."""
        if not self.is_compiling:
            self.is_compiling = True
            for listener in listeners():
                listener.compiling(self.labels)


class Counts:
    """The hits and misses of this process."""

    def __init__(self):
        self._lock = threading.Lock()
        self.requests = 0
        self.hits = 0

    def clear(self) -> None:
        """Starts again from 0, for another cache."""
        with self._lock:
            self.requests = self.hits = 0

    def add(self, requests: int, hits: int) -> None:
        """Adds requests, and the hits among them."""
        with self._lock:
            self.requests += requests
            self.hits += hits


_lookup = ScopedValue[Lookup | None](None)
counts = Counts()
_listens = (
    threading.Lock()
)  # held from the first use on: JAX calls a listener as often as it has it


@contextlib.contextmanager
def looking_up(labels: EntryLabels) -> Iterator[Lookup]:
    """Labels the one compilation inside, and records whether it was a hit.

        with looking_up(EntryLabels(model="classifier", program="train_run")) as lookup:
            compiled = lowered.compile()
        lookup.hit

    Without a cache nothing is a hit.
    """
    listen()
    for listener in listeners():
        listener.before_lookup()
    lookup = Lookup(labels)
    with _lookup.bound_to(lookup):
        if not asks_any():
            lookup.missed()
        yield lookup
    if not lookup.hit:  # of files of JAX's own, which it reports only now
        lookup.missed()


def current_lookup() -> Lookup | None:
    """Returns the lookup of this thread; None for compilations that JAX alone asks for."""
    return _lookup.get()


def listen() -> None:
    """Counts JAX's events from now on."""
    if _listens.acquire(blocking=False):
        jax.monitoring.register_event_listener(_on_event)


def _on_event(event: str, **_: object) -> None:
    if event == _REQUEST:
        counts.add(requests=1, hits=0)
    elif event == _HIT:
        counts.add(requests=0, hits=1)
        if lookup := _lookup.get():
            lookup.hit = True
