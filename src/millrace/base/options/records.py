"""The options of a model, as frozen records."""

import math
from dataclasses import dataclass

from millrace.base.options.checks import (
    at_least,
    bytes_or_share,
    member_of,
    seconds,
    truth,
    truth_or_auto,
)
from millrace.base.options.choices import MetricReduction, RecomputationMode
from millrace.base.options.table import (
    ACCUMULATION,
    CALLBACKS,
    INFEED,
    PIPELINING,
    RECOMPUTATION,
    REPLICATION,
    Auto,
    Option,
    declare,
)
from millrace.base.options.update_records import Accumulation, Pipelining


@dataclass(frozen=True, slots=True, kw_only=True)
class TapRequest:
    """Tensors whose statistics leave the programs of training, by patterns of names.

    A pattern is as in a shell, `dense*`, and matches a whole name or its last part.
    """

    activations: tuple[str, ...] = ()
    micro_gradients: tuple[str, ...] = ()  # of every micro-batch
    gradients: tuple[str, ...] = ()  # as they are applied
    every: int = 1  # updates
    bins: int = 0  # of histograms; 0 for none
    norms: bool = False  # only norms, and counts of NaNs and infinities, are wanted
    loss: bool = False  # the loss of every micro-batch, too
    stops: bool = False  # before the first update with a gradient that is not finite

    def __bool__(self) -> bool:
        return bool(self.activations or self.micro_gradients or self.gradients)

    def __or__(self, other: "TapRequest") -> "TapRequest":
        """Returns the request that covers both."""
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


MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Replication:
    """The metrics that replicas report, and the values that they share out."""

    metrics: MetricReduction = declare(
        MetricReduction.MEAN,
        Option(
            "replicated_metric_reduction_method",
            member_of(MetricReduction),
            (REPLICATION,),
            doc='`"mean"`: metrics over the batches of all replicas; `"sum"` of the replicas\' '
            'values; `"list"` of them; `"none"`: the last replica\'s value.',
        ),
    )
    shard_optimizer_state: bool = declare(
        False,
        Option(
            "replicated_optimizer_state_sharding",
            truth,
            (PIPELINING, REPLICATION),
            doc="True keeps an equal part of the optimizer's values on the devices of each "
            "replica, which updates the weights of that part: ZeRO-1.",
        ),
    )
    shard_weights: bool = declare(
        False,
        Option(
            "replicated_weight_sharding",
            truth,
            (PIPELINING, REPLICATION),
            doc="True keeps an equal part of the weights there, too, and gathers them where the "
            "micro-batches of an update need them: ZeRO-3.",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """The values that backward computes again: by a mode, or as few as a budget needs."""

    mode: RecomputationMode = declare(
        RecomputationMode.NONE,
        Option(
            "recomputation_mode",
            member_of(RecomputationMode),
            (PIPELINING,),
            arguments={RECOMPUTATION: "mode"},
            doc='`"none"` computes nothing again. `"recompute_and_backpropagate_interleaved"` '
            "computes again, segment by segment, the values between two `RecomputationCheckpoint` "
            'layers. `"recompute_then_backpropagate"` computes a pipeline stage again as a whole. '
            '`"auto"` is the former for a model in one piece and for the schedule `"sequential"`, '
            "and the latter for all others. It ends a budget.",
        ),
    )
    budget: int | float | None = declare(
        None,
        Option(
            "budget",
            lambda _, value: bytes_or_share(value),
            (RECOMPUTATION,),
            doc='the peak that training may reach on a device: bytes, a text such as `"1.5GB"`, '
            "or a share above 0 and up to 1 of what training takes without recomputation. millrace "
            "then chooses what is kept, for the fewest additional FLOPs. A `mode` ends it.",
            accepts=int | float | str,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """The values kept in host memory between their uses; None where that is known to pay."""

    optimizer_state: bool | None = declare(
        None,
        Option(
            "offload_weight_update_variables",
            truth_or_auto,
            (ACCUMULATION, PIPELINING, REPLICATION),
            doc="True keeps the optimizer's values in host memory between updates.",
            auto="where the device has such memory, for a pipeline or an update of several steps",
            accepts=bool | Auto,
        ),
    )
    activations: bool | None = declare(
        None,
        Option(
            "offload_activations",
            truth_or_auto,
            (PIPELINING,),
            doc="True keeps activations there until their backward.",
            auto="with `batch_serialization_iterations`, where the device has such memory",
            accepts=bool | Auto,
        ),
    )
    accumulators: bool | None = declare(
        None,
        Option(
            "offload_gradient_accumulation_buffers",
            truth_or_auto,
            (ACCUMULATION, PIPELINING),
            doc="True keeps accumulated gradients there between micro-batches.",
            auto="with `batch_serialization_iterations`, where the device has such memory",
            accepts=bool | Auto,
        ),
    )
    weights: bool | None = declare(
        None,
        Option(
            "offload_weights",
            truth_or_auto,
            (PIPELINING, REPLICATION),
            doc="True keeps each replica's part of weights that replicas share out there while no "
            "micro-batch needs them.",
            auto="off",
            accepts=bool | Auto,
        ),
    )


NO_OFFLOAD = Offload(optimizer_state=False, activations=False, accumulators=False, weights=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """The feed of a device. The defaults are measured in `benchmarks/infeed.py`.

    Two blocks ahead cover the hand-over between the threads; more only costs memory. 32 MiB are
    some hundred steps of a small model, which hides the cost of dispatch, and one step of a large
    one. With 256 MiB, MNIST, CIFAR and tabular data stay on the device, and larger data leaves the
    memory to the model.
    """

    prefetch_depth: int = declare(
        2,
        Option(
            "prefetch_depth",
            at_least(1),
            (INFEED,),
            doc="blocks prepared ahead of the one in use; at least 1.",
        ),
    )
    max_block_bytes: int = declare(
        32 * MIB,
        Option(
            "max_block_bytes",
            at_least(1),
            (INFEED,),
            doc="bytes of one block of stacked batches, on one device. An execution of more steps "
            "than fit runs from several blocks.",
        ),
    )
    max_resident_bytes: int = declare(
        256 * MIB,
        Option(
            "max_resident_bytes",
            at_least(0),
            (INFEED,),
            doc="arrays of at most this many bytes in all stay on the device and are shuffled "
            "there; 0 keeps none.",
        ),
    )
    max_wait_seconds: float | None = declare(
        None,
        Option(
            "max_wait_seconds",
            seconds,
            (INFEED,),
            doc="longest wait for one batch of the data set; then a `DataError` shows the line "
            "where the data set hangs.",
            auto="no limit, and a warning after 60 seconds",
            accepts=float | Auto,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All options of one model."""

    accumulation: Accumulation = Accumulation()
    pipelining: Pipelining = Pipelining()
    replication: Replication = Replication()
    recomputation: Recomputation = Recomputation()
    offload: Offload = Offload()
    feed: Feed = Feed()
    asynchronous_callbacks: bool = declare(
        False,
        Option(
            "asynchronous_callbacks",
            truth,
            arguments={CALLBACKS: "asynchronous"},
            doc="True calls `on_train_batch_end` and the like once per step, in order, while later "
            "steps of the execution run. A callback that reads weights then waits for the "
            "execution. False ends `stop_within`.",
        ),
    )
    stop_within: int | None = declare(
        None,
        Option(
            "stop_within",
            at_least(1),
            (CALLBACKS,),
            doc="steps after which `fit` has stopped, at most, once a callback sets "
            "`model.stop_training`; whole updates. 1 stops with the state of that very step. "
            "Longer executions run in pieces of this many steps.",
            auto="after the execution",
            accepts=int | Auto,
        ),
    )
