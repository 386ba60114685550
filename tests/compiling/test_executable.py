import time

import jax
import jax.numpy as jnp

from millrace.base.devices import DeviceGroup
from millrace.base.options import Accumulation, Replication
from millrace.base.records.compilation import ProgramKey
from millrace.compilation.executables import progress
from millrace.compilation.executables.log import CompileLog
from millrace.compilation.executables.lowering import code_of
from millrace.compilation.executables.wanted import of_plan
from millrace.compilation.finder import ProgramFinder
from millrace.programs.plan import BatchSpec, Mode, Plan
from millrace.programs.steps.program import Program

FLOATS = jax.ShapeDtypeStruct((4,), jnp.float32)


def plan():
    return Plan(
        mode=Mode.TEST,
        batch=BatchSpec(None, ((4,),), (jnp.dtype("float32"),)),
        capacity=3,
        accumulation=Accumulation(),
        step_logs=False,
        records=0,
        group=DeviceGroup((jax.devices()[2],)),
        replication=Replication(),
    )


def compiled(function, log, donated=(), arguments=(FLOATS,)):
    program = Program("test_run", function, arguments, donated)

    def make():
        return code_of(program, plan(), seconds=100.0)

    key = ProgramKey("model", "test_run", ())
    return ProgramFinder(log).find(of_plan(key, plan(), make, None, None))


def test_it_runs_on_the_plans_device_and_is_recorded():
    log = CompileLog()
    run = compiled(lambda x: x * 2, log)
    result = run(jax.device_put(jnp.ones(4), jax.devices()[2]))
    assert result.devices() == {jax.devices()[2]}
    assert result.tolist() == [2, 2, 2, 2]
    (record,) = log.records
    assert (record.model, record.program, record.capacity) == ("model", "test_run", 3)
    assert record.batch == "float32[4]"
    assert record.trace_seconds >= 100
    assert record.lower_seconds > 0
    parts = record.trace_seconds, record.lower_seconds, record.compile_seconds
    assert record.seconds == sum(parts)


def test_donated_arguments_give_their_memory_away():
    state = jax.device_put(jnp.ones(4), jax.devices()[2])
    compiled(lambda x: x * 3, CompileLog(), donated=(0,))(state)
    assert state.is_deleted()


def test_a_slow_compilation_says_that_it_is_going_on(monkeypatch, caplog):
    caplog.set_level("INFO", logger="millrace")
    monkeypatch.setattr(progress, "SLOW_SECONDS", 0.0)

    def slow(x):
        time.sleep(0.2)
        return x

    compiled(slow, CompileLog())
    lines = [r.getMessage() for r in caplog.records if r.levelname == "INFO"]
    assert lines[0] == "tracing test_run of 'model' for batches of float32[4] ..."


def test_programs_that_use_other_arguments_share_nothing():
    """JAX leaves out what a program does not use, so both have one text."""
    log = CompileLog()

    def made(function):
        return compiled(function, log, arguments=(FLOATS, FLOATS))

    device = jax.devices()[2]
    ones, twos = (jax.device_put(jnp.full(4, x), device) for x in (1.0, 2.0))
    assert made(lambda x, y: x * 5)(ones, twos).tolist() == [5] * 4
    assert made(lambda x, y: y * 5)(ones, twos).tolist() == [10] * 4
