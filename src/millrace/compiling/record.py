"""Records of executables: key, cause, sizes and seconds of each."""

from millrace._compat.jax_executables import Sizes
from millrace.records.compilation import Cause, CompileRecord, Origin, ProgramKey


def record_of(
    key: ProgramKey,
    origin: Origin,
    cause: Cause,
    is_recompilation: bool,
    sizes: Sizes,
    *,
    began: float,
    compile_seconds: float,
    trace_seconds: float = 0.0,
    lower_seconds: float = 0.0,
    batch: str = "",
    capacity: int = 0,
    unrolled: int | None = None,
) -> CompileRecord:
    """Returns the record of an executable.

    Args:
        key: of its program.
        origin: where it came from.
        cause: why it was made.
        is_recompilation: whether its program has run before in another form.
        sizes: its memory.
        began: seconds since 1970.
        compile_seconds: time in XLA, or of reading it.
        trace_seconds: time in Python.
        lower_seconds: time in JAX.
        batch: shapes and dtypes of a batch, or of the arguments of a function.
        capacity: steps that its block holds.
        unrolled: iterations in unrolled code; None for a loop of any number.
    """
    return CompileRecord(
        model=key.model,
        program=key.program,
        batch=batch,
        capacity=capacity,
        unrolled=unrolled,
        trace_seconds=trace_seconds,
        compile_seconds=compile_seconds,
        temporary_bytes=sizes.temporary_bytes,
        peak_bytes=sizes.peak_bytes,
        lower_seconds=lower_seconds,
        origin=origin,
        key=key.digest,
        cause=cause.text,
        remedy=cause.remedy,
        is_recompilation=is_recompilation,
        code_bytes=sizes.code_bytes,
        began=began,
    )
