"""Choices of the user by name: enumerations, which options and arguments take as text, too."""

import enum


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
