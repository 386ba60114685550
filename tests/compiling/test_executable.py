import time

import jax
import jax.numpy as jnp

from millrace.compiling import executable
from millrace.compiling.executable import compile_program
from millrace.devices import DeviceGroup
from millrace.options import Accumulation, Replication
from millrace.plan import BatchSpec, Mode, Plan
from millrace.programs.program import Program

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


def compiled(function, log, donated=()):
    program = Program("test_run", function, (FLOATS,), None, donated)
    return compile_program(program, plan(), "model", log, trace_seconds=100.0)


def test_it_runs_on_the_plans_device_and_is_recorded():
    log = []
    run = compiled(lambda x: x * 2, log)
    result = run(jax.device_put(jnp.ones(4), jax.devices()[2]))
    assert result.devices() == {jax.devices()[2]}
    assert result.tolist() == [2, 2, 2, 2]
    (record,) = log
    assert (record.model, record.program, record.capacity) == ("model", "test_run", 3)
    assert record.batch == "float32[4]"
    assert record.trace_seconds >= 100
    assert record.seconds == record.trace_seconds + record.compile_seconds


def test_donated_arguments_give_their_memory_away():
    state = jax.device_put(jnp.ones(4), jax.devices()[2])
    compiled(lambda x: x * 2, [], donated=(0,))(state)
    assert state.is_deleted()


def test_a_slow_compilation_says_that_it_is_going_on(monkeypatch, caplog):
    caplog.set_level("INFO", logger="millrace")
    monkeypatch.setattr(executable, "SLOW_SECONDS", 0.01)

    def slow(x):
        time.sleep(0.2)
        return x

    compiled(slow, [])
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "INFO"]
    assert line == "compiling test_run of 'model' for batches of float32[4] ..."
