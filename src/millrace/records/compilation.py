"""What was compiled, and how long it took."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CompileRecord:
    """One compilation of one program."""

    model: str  # the model's name
    program: str  # such as "train"
    batch: str  # shapes and dtypes of one batch, as text
    capacity: int  # steps that its block holds
    unrolled: int | None  # turns in unrolled code; None is a loop of any number of them
    trace_seconds: float  # Python: model code to StableHLO
    compile_seconds: float  # XLA: StableHLO to machine code
    temporary_bytes: int  # what the executable allocates besides arguments and results
    peak_bytes: int = 0  # what a call needs on each device: these, arguments and results

    @property
    def seconds(self) -> float:
        """Seconds from the model's Python code to an executable."""
        return self.trace_seconds + self.compile_seconds
