"""Records of processes, of their loops, and of the executions in them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from millrace.base.records.table_text import TableRecord

Outcome = Literal["running", "finished", "interrupted", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ProcessRecord(TableRecord):
    """A process that took part in a run."""

    process: int  # its number in the run
    processes: int = 1  # in the run
    script: str = ""  # path of the program; empty in a notebook
    pid: int
    host: str
    cores: int  # that it may use
    began: float  # seconds since 1970
    versions: Mapping[str, str] = field(default_factory=dict[str, str])  # "keras": "3.15.1"
    platform: str  # "cpu", "gpu" or "tpu"
    devices: tuple[str, ...]  # of the strategy, in this process
    ended: float = 0.0  # 0 while it runs, and if it was killed


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoopRecord(TableRecord):
    """One call of fit, evaluate or predict, or of a loop of the user's own.

    It is written at the begin and again at the end; the last one with its number and process holds.
    """

    number: int  # of the loop in its process, from 0
    process: int = 0
    model: str  # its name; that of the function for a loop of the user's own
    mode: str  # "train", "test" or "predict"; "function" for one of the user's own
    began: float  # seconds since 1970
    ended: float = 0.0  # 0 while it runs
    outcome: Outcome = "running"  # also if the process was killed
    error: str = ""  # the first line of what it raised
    options: Mapping[str, str] = field(default_factory=dict[str, str])  # those in force, by name
    stages: int = 1
    replicas: int = 1
    devices: tuple[str, ...] = ()
    parameters: int = 0  # elements of the model's weights
    executions: int = 0
    steps: int = 0
    epochs: int = 0  # that have begun
    compile_seconds: float = 0.0
    planning_seconds: float = 0.0  # of these: searches for what fits, with all they compile
    wait_seconds: float = 0.0  # for data
    # Of a pipeline over processes: what the time of its updates went to, as `UpdateSeconds.parts`.
    update_seconds: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def seconds(self) -> float:
        """From the begin to the end; 0 while it runs."""
        return max(self.ended - self.began, 0.0) if self.ended else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSample:
    """The executions of a loop within a short time, added up."""

    loop: int
    process: int = 0
    mode: str  # validation in fit has samples of its own, within the loop of the fit
    epoch: int  # from 1; 0 if it is not known
    began: float  # seconds since 1970
    seconds: float  # until the next execution began, or the loop ended
    executions: int
    steps: int
    compile_seconds: float = 0.0
    wait_seconds: float = 0.0  # for data
    dispatch_seconds: float = 0.0  # the host, in calls of compiled code


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord:
    """The end of an epoch of fit, with what Keras logged."""

    loop: int
    process: int = 0
    epoch: int  # from 1
    ended: float  # seconds since 1970
    logs: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSample:
    """The state of an infeed at one moment, and its work since the last sample."""

    loop: int
    process: int = 0
    mode: str
    epoch: int
    time: float  # seconds since 1970
    depth: int  # blocks that are ready
    limit: int  # of blocks that may be ready
    blocks: int  # handed to the loop since the last sample, as all that follows
    steps: int
    bytes: int
    prepare_seconds: float  # the feeding thread: reading, stacking, starting the transfer
    wait_seconds: float  # the loop, for a block that was not ready
