"""Choices by name: enumerations, which options and arguments also take as text."""

import enum


class Moment(enum.Enum):
    """When gradients are read."""

    AFTER_COMPUTE = "after_compute"  # of every micro-batch
    BEFORE_APPLY = "before_apply"  # as they are applied, once per update


class QueueMode(enum.Enum):
    """The values that an outfeed queue keeps."""

    ALL = "all"
    LAST = "last"


class Reduction(enum.Enum):
    """The way to combine the gradients of micro-batches: first within, then across replicas."""

    AUTO = "auto"  # as MEAN, where losses do not divide by numbers of the data
    MEAN = "mean"
    SUM = "sum"
    RUNNING_MEAN = "running_mean"  # without a sum, which float16 might not hold
    SUM_THEN_MEAN = "sum_then_mean"
    MEAN_THEN_SUM = "mean_then_sum"
    RUNNING_MEAN_THEN_SUM = "running_mean_then_sum"

    @property
    def is_running(self) -> bool:
        """Whether the accumulator is a mean at any time."""
        return self in (Reduction.RUNNING_MEAN, Reduction.RUNNING_MEAN_THEN_SUM)


class MetricReduction(enum.Enum):
    """The way to report the metrics of several replicas."""

    MEAN = "mean"  # over the batches of all replicas: their states are added
    SUM = "sum"  # of the replicas' values
    LIST = "list"  # every replica's value
    NONE = "none"  # the last replica's value


class RecomputationMode(enum.Enum):
    """The values that backward computes again instead of keeping them from forward."""

    NONE = "none"
    AUTO = "auto"  # by the schedule; by boundaries for a model in one piece
    RECOMPUTE_THEN_BACKPROPAGATE = "recompute_then_backpropagate"  # a stage whole
    RECOMPUTE_AND_BACKPROPAGATE_INTERLEAVED = "recompute_and_backpropagate_interleaved"  # segments


class RecompilePolicy(enum.Enum):
    """The reaction to a program that is compiled again, in another form."""

    LOG = "log"
    WARN = "warn"
    ERROR = "error"
