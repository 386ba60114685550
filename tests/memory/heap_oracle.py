"""XLA's own figure: the peak in the heap trace that it dumps on request."""

import glob
import tempfile

import jax

from millrace.run.memory.hlo_proto import _fields, _last, read_buffers

_ALLOCATE, _FREE, _SHARE = 0, 1, 2


def compiled_with_peak(function, *arguments, donated=()):
    """Returns the executable and its peak, in bytes: what rests, and the peak of the heap."""
    lowered = jax.jit(function, donate_argnums=donated).lower(*arguments)
    return compile_with_peak(lowered.compile)


def compile_with_peak(compile, options=None):
    """Calls `compile` with XLA's options; returns the executable and its peak, likewise."""
    with tempfile.TemporaryDirectory() as directory:
        dump = {"xla_dump_to": directory, "xla_dump_hlo_as_proto": True}
        compiled = compile(compiler_options={**(options or {}), **dump})
        (path,) = glob.glob(f"{directory}/*after_optimizations*.hlo.pb")
        with open(path, "rb") as file:
            data = _last(_fields(file.read()), 3, b"")
    assignment = read_buffers(data)
    rest = sum(
        each.size
        for each in assignment.allocations
        if not (each.is_thread_local or each.is_temporary)
    )
    traces = [_fields(trace).get(1, ()) for trace in _fields(data).get(4, ())]
    return compiled, rest, sum(_peak(map(_fields, trace), assignment.buffers) for trace in traces)


def _peak(events, buffers):
    used = peak = 0
    owner, users = {}, {}  # of buffers that share memory
    for event in events:
        kind, buffer, other = _last(event, 1), _last(event, 2), _last(event, 5)
        if kind == _FREE:
            users[owner[buffer]] -= 1
            used -= 0 if users[owner[buffer]] else buffers[owner[buffer]].size
            continue
        owner[buffer] = owner[other] if kind == _SHARE else buffer
        if not users.get(owner[buffer]):
            used += buffers[owner[buffer]].size
        users[owner[buffer]] = users.get(owner[buffer], 0) + 1
        peak = max(peak, used)
    return peak
