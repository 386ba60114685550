"""The options of the queues around an extended model: checked when fit builds these.

prefetch_depth                                  -> Feed.prefetch_depth
max_block_bytes, max_resident_bytes             -> the same of Feed, which no IPU program has
optimise_latency, optimize_latency              of no effect
buffer_depth                                    of no effect
"""

from collections.abc import Mapping
from typing import Any

from millrace.arguments import refuse_unknown
from millrace.errors import OptionError
from millrace.ipu.inert import inert
from millrace.ipu.keras.extensions.settings import Settings
from millrace.options import Feed, whole_number

_LATENCY = ("optimise_latency", "optimize_latency")
_BYTES = ("max_block_bytes", "max_resident_bytes")
_FEED = ("prefetch_depth", *_BYTES)
_INFEED = ("prefetch_depth", *_LATENCY, *_BYTES)
_OUTFEED = ("buffer_depth", *_LATENCY)


def feed(settings: Settings) -> Feed:
    """Returns the native options; what has no value that they can have is refused at fit."""
    given = settings.infeed.items()
    return Feed(**{name: value for name, value in given if name in _FEED and _fits(name, value)})


def check_queues(settings: Settings) -> None:
    """Refuses options that the queues do not have.

    Raises:
        OptionError: for an unknown one, or a depth out of range.
    """
    setter = "set_infeed_queue_options"
    _check_queue(setter, settings.infeed, _INFEED, "prefetch_depth", 255)
    setter, options = "set_outfeed_queue_options", settings.outfeed
    _check_queue(setter, options, _OUTFEED, "buffer_depth", None)
    if options:
        inert("buffer_depth", "Results wait on the host for whoever reads them, without limit.")


def _check_queue(
    setter: str, given: Mapping[str, Any], known: Any, depth: str, most: int | None
) -> None:
    refuse_unknown(setter, [name for name in given if name not in known], known, {})
    if depth in given and whole_number(depth, given[depth], 1) > (most or given[depth]):
        raise OptionError(
            f"{depth} must be at most {most}. Received: {given[depth]}. Set {depth}={most} or "
            f"less in model.{setter}()."
        )


def _fits(name: str, value: Any) -> bool:
    least, most = (1, 255) if name == "prefetch_depth" else (0, None)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return is_number and value >= least and (most is None or value <= most)
