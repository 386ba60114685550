"""The way from a lowered program to an executable: shared, read from disk, or compiled."""

import logging
import os
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

import jax

from millrace._compat.jax_cache import loads_quietly
from millrace._compat.jax_executables import Sizes, sizes_of
from millrace._compat.jax_refused import refused
from millrace._compat.jax_targets import COMPILER_OPTIONS, belongs_here, is_described
from millrace.base.records.cache import EntryLabels
from millrace.base.records.compilation import Aspect, Cause, Origin, ProgramKey
from millrace.base.records.printable import printable
from millrace.compilation.cache.keys import current_script
from millrace.compilation.cache.lookup import looking_up
from millrace.compilation.cache.use import known_keys
from millrace.compilation.executables.log import CompileLog
from millrace.compilation.executables.lowering import Lowering
from millrace.compilation.executables.progress import progress
from millrace.compilation.executables.sharing import (
    SharedExecutable,
    copied,
    of_cache,
    remember,
    serves,
    share_key,
    sharing,
)
from millrace.compilation.explain.diagnose import ANOTHER_MODEL, explain, history, layers_of
from millrace.compilation.explain.program_difference import difference

logger = logging.getLogger("millrace")


def number_of_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


_cores = threading.BoundedSemaphore(number_of_cores())  # one compilation for each core


@dataclass(frozen=True, slots=True)
class CompileResult:
    """An executable with its origin, its cause and the time that it took."""

    compiled: jax.stages.Compiled
    origin: Origin
    cause: Cause
    layers: tuple[str, ...]  # of the model that it was compiled for, in order
    sizes: Sizes
    seconds: float  # without the time of waiting for other compilations


def share_or_compile(lowering: Lowering, log: CompileLog) -> CompileResult:
    """Returns the executable of a program.

    Raises:
        RecompilationError: if this would be a recompilation, and the log refuses those.
    """
    text, devices = lowering.lowered.as_text(), lowering.wanted.devices
    if not lowering.shares:
        return _compile(lowering, log, text)
    try:
        key = share_key(text, lowering.lowered, devices, lowering.options)
    except (AttributeError, KeyError):  # a JAX that does not tell the used arguments
        return _compile(lowering, log, text)
    made: list[CompileResult] = []

    def make() -> SharedExecutable:
        result = _compile(lowering, log, text)
        made.append(result)
        return SharedExecutable(result.compiled, devices, result.layers, result.sizes)

    shared = sharing.get(key, make)
    return made[0] if made else _shared(shared, lowering, text) or _compile(lowering, log, text)


def _shared(shared: SharedExecutable, lowering: Lowering, text: str) -> CompileResult | None:
    """Returns the executable of an equal program; None if it cannot be used."""
    begin = time.perf_counter()
    compiled, wanted = shared.compiled, lowering.wanted
    if not serves(shared, lowering.lowered, wanted.devices):
        if not _can_copy(wanted.devices):
            return None
        try:
            compiled = copied(shared, lowering.lowered, wanted.devices)
        except Exception as error:  # a kind of executable that its backend cannot write
            logger.debug("%s is compiled again: %s", wanted.what, error)
            return None
    history.add(wanted.key, text)
    seconds, cause = time.perf_counter() - begin, lowering.reason.cause
    return CompileResult(compiled, Origin.SHARED, cause, shared.layers, shared.sizes, seconds)


def _can_copy(devices: tuple[jax.Device, ...]) -> bool:
    return loads_quietly() and all(map(belongs_here, devices))


def _compile(lowering: Lowering, log: CompileLog, text: str) -> CompileResult:
    wanted = lowering.wanted
    key = wanted.key
    cause = _with_difference(lowering.reason.cause, key, text)
    log.allow(wanted.what, cause, lowering.reason.is_again)
    earlier = history.keys(key.program)
    if not log.is_dry_run:  # the trials of a plan are no program of the user's
        history.add(key, text)
    labels = EntryLabels(key.model, key.program, wanted.batch, key, wanted.layers)
    what = f"{wanted.what} (Ctrl-C waits for it)"
    with _cores, progress("compiling", what), looking_up(labels) as lookup:
        begin = time.perf_counter()
        compiled = _compiled(lowering)
        seconds = time.perf_counter() - begin
    if lookup.hit:
        remember(compiled, of_cache(lookup.entry))
        layers = lookup.layers or wanted.layers
        return CompileResult(compiled, Origin.CACHE, cause, layers, sizes_of(compiled), seconds)
    if not earlier:  # in this process; an earlier process may have compiled one
        cause = _since_an_earlier_process(key, cause)
    sizes = sizes_of(compiled)
    return CompileResult(compiled, Origin.COMPILED, cause, wanted.layers, sizes, seconds)


def _compiled(lowering: Lowering) -> Any:
    """Returns the executable, or what stands in for it where a target's memory is too small."""
    lowered, platform = lowering.lowered, lowering.wanted.devices[0].platform
    options = dict(lowering.options)
    if is_described(lowering.wanted.devices[0]):
        options = {**COMPILER_OPTIONS.get(platform, {}), **options}
    try:
        return lowered.compile(options or None)
    except jax.errors.JaxRuntimeError as error:
        # XLA chooses among the kernels of a GPU by trying them out, and takes the first for one
        # that is not here. Where that has no tiles for a product, cuBLAS has a kernel for it.
        if _NO_TILES in str(error) and is_described(lowering.wanted.devices[0]):
            return lowered.compile({**options, "xla_gpu_enable_triton_gemm": False})
        stand_in = refused(lowered, error)
        if stand_in is None:
            raise
        return stand_in


_NO_TILES = "Couldn't find output tile sizes"
_REMEDY = (
    "Values that a program reads while it is traced are constants of it: draw numbers with "
    "keras.random, and keep values that change in a keras.Variable."
)


def _with_difference(cause: Cause, key: ProgramKey, text: str) -> Cause:
    """Returns the cause; with the differences of the programs if no field of the key differs."""
    if any(aspect is not Aspect.IDENTITY for aspect in cause.aspects):
        return cause
    before = history.text_of(key)
    differences = difference(before, text) if before else ()
    if not differences:
        return cause
    text = f"{cause.text}; in the program: {'; '.join(differences)}"
    return replace(cause, text=text, remedy=_REMEDY)


def _since_an_earlier_process(key: ProgramKey, cause: Cause) -> Cause:
    keys = known_keys(key.program)
    # The key itself is among them: it has just been written.
    earlier = [each for each in keys if each.digest != key.digest and _is_of_same(each, key)]
    if not earlier:
        return cause
    since = explain(key.without_identity, [each.without_identity for each in earlier[::-1]])
    if since.text == ANOTHER_MODEL:
        return cause
    text = f"{cause.text}; since an earlier process: {printable(since.text)}"
    return replace(since, text=text)


def _is_of_same(earlier: ProgramKey, key: ProgramKey) -> bool:
    """Whether a program of an earlier process is probably of the same model.

    The name is not enough: every first `keras.Sequential` is called "sequential". In the same
    script the model of that name may have changed; in any other its layers must be equal.
    """
    if earlier.model != key.model:
        return False
    script = current_script()
    if script and earlier.script == script:
        return True
    before, now = ([(f.name, f.value) for f in layers_of(each)] for each in (earlier, key))
    return before == now
