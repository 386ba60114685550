"""What the user chose, as frozen records. Every setter on a model replaces one of them whole."""

import contextlib
import enum
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np

from millrace.errors import OptionError

MIB = 2**20
Kind = TypeVar("Kind", bound=enum.Enum)


class Moment(enum.Enum):
    """When the gradients of an update are looked at."""

    AFTER_COMPUTE = "after_compute"  # those of every micro-batch
    BEFORE_APPLY = "before_apply"  # what is about to be applied, once per update


class QueueMode(enum.Enum):
    """What an outfeed queue keeps."""

    ALL = "all"
    LAST = "last"


class Reduction(enum.Enum):
    """How the gradients of one update's micro-batches become one: first those of each replica."""

    MEAN = "mean"
    SUM = "sum"
    RUNNING_MEAN = "running_mean"  # no sum is ever made, which float16 might not hold
    SUM_THEN_MEAN = "sum_then_mean"
    MEAN_THEN_SUM = "mean_then_sum"
    RUNNING_MEAN_THEN_SUM = "running_mean_then_sum"

    @property
    def is_running(self) -> bool:
        """Whether what is accumulated is a mean at any time."""
        return self in (Reduction.RUNNING_MEAN, Reduction.RUNNING_MEAN_THEN_SUM)


class MetricReduction(enum.Enum):
    """What is reported of the metrics of several replicas."""

    MEAN = "mean"  # over the batches of all replicas: their states are added
    SUM = "sum"  # of the replicas' values
    LIST = "list"  # every replica's value
    NONE = "none"  # the last replica's value


class RecomputationMode(enum.Enum):
    """What backward computes again instead of having kept it."""

    NONE = "none"
    AUTO = "auto"  # what suits the schedule; boundaries act where a model has no pipeline
    RECOMPUTE_THEN_BACKPROPAGATE = "recompute_then_backpropagate"  # a stage whole
    RECOMPUTE_AND_BACKPROPAGATE_INTERLEAVED = "recompute_and_backpropagate_interleaved"  # segments


class RecompilePolicy(enum.Enum):
    """What is done when a program is compiled that was compiled before, in another form."""

    LOG = "log"
    WARN = "warn"
    ERROR = "error"


# `keras.Variable` is spelled `Any` here: options know neither Keras nor JAX.
AccumulatorDtype = str | Callable[[Any], str | None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulation:
    """How many micro-batches make one weight update, and how their gradients are combined.

    `dtype` is that of the accumulator: None takes each variable's own, a name takes that one for
    all, and a function of the variable chooses for each.
    """

    steps: int = 1
    reduction: Reduction = Reduction.MEAN
    dtype: AccumulatorDtype = None
    batch_serialization: int = (
        1  # of `steps`: each stage of a pipeline runs so many before the next stage
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replication:
    """What replicas report, and what they share out instead of holding it all."""

    metrics: MetricReduction = MetricReduction.MEAN
    shard_optimizer_state: bool = False
    shard_weights: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """How data reaches the device. The defaults are measured in `benchmarks/infeed.py`.

    Two blocks ahead cover the hand-over between the threads; more only costs memory. 32 MiB is
    some hundred steps of a small model, which makes dispatch disappear, and one step of a large
    one. 256 MiB keeps MNIST, CIFAR and tabular data on the device and leaves it to the model
    otherwise.
    """

    prefetch_depth: int = 2  # blocks prepared ahead of the one in use
    max_block_bytes: int = 32 * MIB  # of one block of stacked batches, on one device
    max_resident_bytes: int = 256 * MIB  # data sets up to this size stay on the device


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """What backward computes again. A budget chooses the boundaries itself, and needs no mode."""

    mode: RecomputationMode = RecomputationMode.NONE
    budget: int | float | None = None  # bytes of a device, or a share of what training takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """What rests in host memory between its uses: None where that is known to be worth it."""

    optimizer_state: bool | None = None
    activations: bool | None = None
    accumulators: bool | None = None
    weights: bool | None = None


NO_OFFLOAD = Offload(optimizer_state=False, activations=False, accumulators=False, weights=False)
CompilerOptions = Mapping[str, Any]  # of XLA, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelining:
    """How the stages of a pipelined model run."""

    # None until set: how many micro-batches an update has decides how long devices idle, so no
    # default is right for many.
    steps: int | None = None
    reduction: Reduction = Reduction.MEAN
    dtype: AccumulatorDtype = None
    schedule: Any = "1f1b"  # a name, a function, or text in the notation of schedules/text.py
    device_mapping: tuple[int, ...] | None = None  # of each stage; None until chosen
    forward_options: tuple[CompilerOptions, ...] | None = None  # of each stage
    backward_options: tuple[CompilerOptions, ...] | None = None
    update_options: CompilerOptions | None = None
    # Micro-batches that a stage runs before the next one starts; `steps` counts such turns.
    batch_serialization: int = 1
    # The stage of the schedule that each stage is part of, where some run at the same time.
    schedule_stages: tuple[int, ...] | None = None

    @property
    def accumulation(self) -> Accumulation | None:
        """How micro-batches make one update; None until their number is set."""
        if self.steps is None:
            return None
        return Accumulation(
            steps=self.steps * self.batch_serialization,
            reduction=self.reduction,
            dtype=self.dtype,
            batch_serialization=self.batch_serialization,
        )

    def devices_of(self, num_stages: int) -> tuple[int, ...]:
        """Returns the device of each stage, as chosen or else one each; all on 0 if serialized."""
        if self.device_mapping is not None:
            return self.device_mapping
        return (0,) * num_stages if self.batch_serialization > 1 else tuple(range(num_stages))


@dataclass(frozen=True, slots=True, kw_only=True)
class TapRequest:
    """Tensors whose statistics leave the programs of training, by patterns of names.

    A pattern is as in a shell, `dense*`, and matches a whole name or its last part.
    """

    activations: tuple[str, ...] = ()
    micro_gradients: tuple[str, ...] = ()  # of every micro-batch
    gradients: tuple[str, ...] = ()  # that are about to be applied
    every: int = 1  # updates
    bins: int = 0  # of histograms; 0 makes none
    norms: bool = False  # of these, and counts of NaNs and infinities, are all that is wanted
    loss: bool = False  # of every micro-batch, too
    stops: bool = False  # at the first update with a gradient that is not finite, before it

    def __bool__(self) -> bool:
        return bool(self.activations or self.micro_gradients or self.gradients)

    def __or__(self, other: "TapRequest") -> "TapRequest":
        """Returns what serves both."""
        return TapRequest(
            activations=_union(self.activations, other.activations),
            micro_gradients=_union(self.micro_gradients, other.micro_gradients),
            gradients=_union(self.gradients, other.gradients),
            every=math.gcd(self.every, other.every),
            bins=max(self.bins, other.bins),
            norms=(self.norms or not self) and (other.norms or not other),
            loss=self.loss or other.loss,
            stops=self.stops or other.stops,
        )


def _union(some: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*some, *more)))


NO_TAPS = TapRequest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All options of one model."""

    accumulation: Accumulation = Accumulation()
    pipelining: Pipelining = Pipelining()
    replication: Replication = Replication()
    recomputation: Recomputation = Recomputation()
    offload: Offload = Offload()
    feed: Feed = Feed()
    asynchronous_callbacks: bool = False
    stop_within: int | None = None  # steps, once a callback wants training to stop


def whole_number(name: str, value: object, minimum: int) -> int:
    """Returns `value` as an int, or says that it is not one of at least `minimum`."""
    if isinstance(value, np.integer):
        value = int(cast(Any, value))
    if isinstance(value, bool) or not isinstance(value, int):
        is_whole = isinstance(value, float) and math.isfinite(value) and value.is_integer()
        advice = f" Set {name}={int(value)}." if is_whole and value >= minimum else ""  # type: ignore[arg-type,operator]
        raise OptionError(
            f"{name} must be a whole number of at least {minimum}. Received: {value!r} of type "
            f"{type(value).__name__}.{advice}"
        )
    if value < minimum:
        raise OptionError(
            f"{name} must be at least {minimum}. Received: {value}. Set {name}={minimum} or more."
        )
    return value


def directory_path(name: str, value: Any) -> str:
    """Returns `value` as text if it is a path, or says that it is not one."""
    try:
        path = cast("str | bytes", os.fspath(value))
    except TypeError:
        path = None
    if not isinstance(path, str):
        raise OptionError(
            f"{name} must be the path of a directory. Received: {value!r} of type "
            f'{type(value).__name__}. Set {name}="runs/first", for example.'
        )
    return path


def truth(name: str, value: object) -> bool:
    """Returns `value` if it is True or False, or says that it is neither."""
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be True or False. Received: {value!r}.")
    return value


def reduction(value: object) -> Reduction:
    """Returns the reduction of gradients of that name, in any case, or lists the names."""
    return _member(Reduction, "gradient_accumulation_reduction_method", value)


def moment(value: object) -> Moment:
    """Returns the moment of that name, in any case, or lists the names."""
    return _member(Moment, "when", value)


def queue_mode(value: object) -> QueueMode:
    """Returns the mode of an outfeed queue of that name, in any case, or lists the names."""
    return _member(QueueMode, "mode", value)


def recomputation_mode(value: object) -> RecomputationMode:
    """Returns the recomputation mode of that name, in any case, or lists the names."""
    return _member(RecomputationMode, "recomputation_mode", value)


def recompile_policy(value: object) -> RecompilePolicy:
    """Returns the policy of that name, in any case, or lists the names."""
    return _member(RecompilePolicy, "on_recompile", value)


def metric_reduction(value: object) -> MetricReduction:
    """Returns the reduction of metrics of that name, in any case, or lists the names."""
    return _member(MetricReduction, "replicated_metric_reduction_method", value)


def _member(kind: type[Kind], option: str, value: object) -> Kind:
    if isinstance(value, kind):
        return value
    names = [member.value for member in kind]
    if not isinstance(value, str) or value.lower() not in names:
        raise OptionError(f"{option} must be one of {names}. Received: {value!r}.")
    return kind(value.lower())


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12} | {
    f"{unit}i": 2 ** (10 * power) for power, unit in enumerate("kmgt", 1)
}
_SIZE = re.compile(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)


def bytes_or_share(value: Any) -> int | float:
    """Returns a budget: bytes as an int, a share as a float.

    Raises:
        OptionError: if it is neither.
    """
    if isinstance(value, str) and (found := _SIZE.fullmatch(value)):
        number, unit = found.groups()
        with contextlib.suppress(ValueError):  # of a number with two points, say
            return bytes_or_share(round(float(number) * _UNITS[(unit or "").lower()]))
    elif isinstance(value, float) and 0 < value <= 1:
        return value
    elif isinstance(value, int | float) and value is not True and value == value // 1 >= 1:
        return int(value)
    raise OptionError(
        "budget must be bytes, a text such as '1.5GB' or '800 MiB', or a share such as 0.5 of what "
        f"training takes without recomputation. Received: {value!r}."
    )
