"""The operations of an executable by layer: counted in the program, timed by a profiler."""

from dataclasses import dataclass

from millrace.base.records.table_text import TableRecord


@dataclass(frozen=True, slots=True)
class OperationGroup:
    """The operations of one layer, or of one purpose, in one pass of an executable."""

    owner: str  # the layer's name; "SGD" for the optimizer, or the name of a purpose
    role: str  # "layer", "loss", "metrics", "optimizer", "accumulation", "transfer", "other"
    kind: str  # "forward", "backward", "recomputation", "update" or ""
    operations: int  # in the program; those in a loop's body count once
    flops: float  # of one call of the executable
    bytes: float  # read and written, of one call
    seconds: float | None = None  # of one call, on average; None if it was not traced


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ProgramOperations(TableRecord):
    """All operations of an executable."""

    model: str
    program: str  # "train_run", "train_forward of stage 1"
    key: str = ""  # as in `CompileRecord`
    stage: int = 0
    steps: int = 1  # of the call that the numbers are of
    groups: tuple[OperationGroup, ...]
    unknown_loops: int = 0  # whose iterations XLA does not know: their operations count once
    calls: int = 0  # that were traced
    traced_seconds: float = 0.0  # wall time of these calls
    overhead: float | None = None  # of tracing: their time over that of others, less 1

    @property
    def flops(self) -> float:
        """Of one call."""
        return sum(group.flops for group in self.groups)
