"""Idioms of programs of several processes: PopDist, Horovod, and `poprun`."""

import importlib
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from idioms import idiom

from millrace.errors import DeviceError, OptionError, PlanError, UnsupportedError
from millrace.tools.cli.main import main
from millrace_ipu import ipu
from millrace_ipu.ipu.config.devices import groups_of_processes
from millrace_ipu.ipu.keras.extensions.instances import Instances

HEAD = """
import sys
import popdist
import popdist.tensorflow
import numpy as np
import tensorflow as tf
from tensorflow.python import ipu
"""


@idiom("Processes", "`import popdist`, `popdist.tensorflow.set_ipu_config(config)`, started alone")
@idiom(
    "Processes", "`popdist.getNumInstances()`, `getInstanceIndex()`, `getNumTotalReplicas()`, ..."
)
@idiom("Processes", "`popdist.execute_on_instances({0}, function)`, `popdist.synchronize()`")
@idiom("Processes", "`popdist.isPopdistEnvSet()`, `popdist.init()`, `popdist.finalize()`")
def test_one_process_is_one_instance_with_one_replica(program):
    assert program(f"""{HEAD}
popdist.init()
print(popdist.isPopdistEnvSet(), popdist.getNumInstances(), popdist.getInstanceIndex())
print(popdist.getNumTotalReplicas(), popdist.getNumLocalReplicas(), popdist.getNumIpusPerReplica())
print(popdist.getDeviceId(), popdist.getReplicaIndexOffset())
config = popdist.tensorflow.set_ipu_config(
    ipu.config.IPUConfig(), ipus_per_replica=2, configure_device=True)
print(config.auto_select_ipus, popdist.getNumIpusPerReplica())
popdist.execute_on_instances({{0}}, print, "first", end=".")
popdist.execute_on_instances({{1}}, print, "second")
popdist.synchronize()
popdist.finalize()
""").splitlines() == ["False 1 0", "1 1 1", "0 0", "2 2", "first."]


@idiom(
    "Processes", "`from tensorflow.python.ipu import horovod as hvd`, `hvd.init()`, `hvd.rank()`"
)
def test_horovod_of_one_process(program):
    assert program(f"""{HEAD}
from tensorflow.python.ipu import horovod as hvd
import tensorflow.python.ipu.distributed as distributed
hvd.init()
print(hvd.size(), hvd.rank(), hvd.local_rank(), hvd.local_size(), distributed is hvd)
hvd.shutdown()
""").splitlines() == ["1 0 0 1 True"]


@idiom(
    "Unsupported, with an error that says what to write",
    "`hvd.allreduce`, `hvd.broadcast`, `hvd.allgather`, on the host",
)
@idiom(
    "Unsupported, with an error that says what to write", "`ipu.distributed.host_collective_ops`"
)
def test_exchanges_of_arrays_of_the_host(program):
    assert (
        program(f"""{HEAD}
from tensorflow.python.ipu.distributed import host_collective_ops
from tensorflow.python.ipu.horovod import allgather, allreduce, broadcast, Average
for function in (allreduce, allgather, broadcast, host_collective_ops.all_reduce):
    try:
        function(tf.constant([1.0, 3.0]), Average)
    except Exception as error:
        print(type(error).__name__, "multihost_utils.process_allgather" in str(error))
""").splitlines()
        == ["UnsupportedNameError True"] * 4
    )


@idiom("Processes", "`from tensorflow.python.ipu.distributed import popdist_strategy`")
@idiom("Processes", "`IPUMultiReplicaStrategy()`, `IPUHorovodStrategy()`")
@idiom("Processes", "`dataset.shard(num_shards=popdist.getNumInstances(), index=...)`")
def test_a_program_of_popdist_runs_alone(program):
    assert program(f"""{HEAD}
from tensorflow.python.ipu.distributed import popdist_strategy
from tensorflow.python.ipu.horovod import ipu_multi_replica_strategy
from tensorflow.python.ipu.horovod.ipu_horovod_strategy import IPUHorovodStrategy
config = ipu.config.IPUConfig()
popdist.tensorflow.set_ipu_config(config, ipus_per_replica=1)
config.configure_ipu_system()
strategy = popdist_strategy.PopDistStrategy(add_ipu_cross_replica_reductions=False)
print(ipu_multi_replica_strategy.IPUMultiReplicaStrategy is IPUHorovodStrategy is type(strategy))
print(strategy.num_replicas_in_sync, strategy.update_ipu_config(config) is config)
dataset = tf.data.Dataset.from_tensor_slices((np.ones((32, 3), "float32"), np.ones(32)))
dataset = dataset.shard(num_shards=popdist.getNumInstances(), index=popdist.getInstanceIndex())
dataset = dataset.batch(8, drop_remainder=True)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=len(dataset) // popdist.getNumLocalReplicas())
    print(len(model.fit(dataset, epochs=2, verbose=0).history["loss"]))
""").splitlines() == ["True", "1 True", "2"]


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_the_part_of_a_process_is_spread_out_to_the_order_of_all_replicas(replicas):
    """Process 0 has the batches 0 1 2 3, and process 1 has 10 11 12 13."""
    count, total = 2, 2 * replicas
    setup = type("Setup", (), {"replicas": total})()
    drawn = []
    for index in range(count):
        instances = Instances(count)
        instances.index = index
        own = [np.full((4, 3), 10 * index + k) for k in range(4)]
        drawn.append([int(batch[0, 0]) for batch in instances.spread(iter(own), setup)])
        assert len(drawn[-1]) == count * len(own)
        # What the replicas of this process compute, and what is left of the outputs of all.
        mine = [b for k, b in enumerate(drawn[-1]) if k % total // replicas == index]
        assert mine == [10 * index + k for k in range(4)]
    outputs = np.repeat([drawn[k % total // replicas][k] for k in range(8)], 4)[:, np.newaxis]
    for index in range(count):
        instances = Instances(count)
        instances.index, instances.rows = index, 4
        rows = instances.own_rows(setup, {"out": outputs})["out"]
        assert rows.shape == (16, 1)
        assert rows[::4, 0].tolist() == [10 * index + k for k in range(4)]


def test_a_replica_that_spans_processes():
    setup = type("Setup", (), {"replicas": 1, "model": type("Model", (), {"name": "net"})()})()
    with pytest.raises(PlanError, match=r"'net' runs as 1 replicas on 2 processes.*per-replica`"):
        Instances(2).replicas(setup)


def test_parts_of_different_sizes_and_single_batches(monkeypatch):
    where = "millrace_ipu.ipu.keras.extensions.instances.texts_of_all"
    monkeypatch.setattr(where, lambda text, _: [text, "15 batches of 8 rows"])
    adapter = type("Adapter", (), {"num_batches": 32, "batch_size": 8})()
    with pytest.raises(PlanError, match=r"process 0: 16 batches of 8 .*1: 15 batches .*take\(len"):
        Instances(2).check_parts(adapter)
    adapter.num_batches = 30
    Instances(2).check_parts(adapter)
    with pytest.raises(UnsupportedError, match=r"train_on_batch, .* on 2 processes.*Call fit\(\)"):
        Instances(2).refuse_one_batch(1)


def test_configurations_that_do_not_fit_the_run(monkeypatch):
    config = ipu.config.IPUConfig()
    assert groups_of_processes(config) == ()
    config.experimental.multi_replica_distribution.process_count = 3
    with pytest.raises(OptionError, match=r"process_count=3, and the run has 1 .*poprun`"):
        groups_of_processes(config)
    monkeypatch.setattr("millrace_ipu.ipu.config.devices.process_count", lambda: 3)
    config.auto_select_ipus = [1, 1]
    with pytest.raises(OptionError, match=r"several logical devices.*Set auto_select_ipus=2"):
        groups_of_processes(config)
    config.auto_select_ipus = 2
    with pytest.raises(DeviceError, match=r"takes 2 devices of each process, and process 1 has 0"):
        groups_of_processes(config)
    popdist = importlib.import_module("millrace_ipu.ipu.popdist")
    importlib.import_module("millrace_ipu.ipu.popdist.tensorflow")
    monkeypatch.setenv("POPDIST_IPUS_PER_REPLICA", "4")
    with pytest.raises(OptionError, match=r"with 4 devices for a replica.*asks for 2.*replica 2"):
        popdist.checkNumIpusPerReplica(2)
    with pytest.raises(OptionError, match=r"takes an IPUConfig. Received: 3"):
        popdist.tensorflow.set_ipu_config(3)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ("--num-replicas 3 --num-instances 2 python a.py", 2, "Set --num-replicas 4"),
        ("--num-instances 2 python3 nowhere.py", 2, "must be a Python script"),
        ("--num-instances 2 python", 2, "Received: 'python'"),
        ("--num-instances 0 a.py", 2, "0 is not in the range"),
    ],
)
def test_command_lines_that_cannot_be(arguments, status, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("print()")
    result = CliRunner().invoke(main, ["poprun", *arguments.split()])
    assert result.exit_code == status
    assert message in result.output


TRAINING = f"""{HEAD}
from tensorflow.python.ipu import horovod as hvd
from tensorflow.python.ipu.horovod import popdist_strategy

config = ipu.config.IPUConfig()
if "alone" in sys.argv:
    config.auto_select_ipus = 4
else:
    popdist.tensorflow.set_ipu_config(config, ipus_per_replica=popdist.getNumIpusPerReplica())
config.configure_ipu_system()
hvd.init()
count, index = popdist.getNumInstances(), popdist.getInstanceIndex()
rows = np.random.RandomState(0).standard_normal((256, 5)).astype("float32")
strategy = popdist_strategy.PopDistStrategy()


def train(name, local_replicas):
    x = rows
    if "alone" in sys.argv:  # the batches of both processes, in the order of the replicas
        parts = [rows[k::2].reshape(-1, local_replicas, 8, 5) for k in (0, 1)]
        x = np.stack(parts, 1).reshape(-1, 5)
    dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True)))
    dataset = dataset.shard(num_shards=count, index=index).batch(8, drop_remainder=True)
    with strategy.scope():
        tf.random.set_seed(1 + index)  # the weights of the first process count
        layers = [tf.keras.layers.Dense(4, "tanh"), tf.keras.layers.Dense(1)]
        if name != "UNBUILT":
            layers = [tf.keras.Input((5,)), *layers]
        model = tf.keras.Sequential(layers)
        if name == "PIPELINES":
            model.set_pipeline_stage_assignment([0, 1])
            model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
        optimizer = tf.keras.optimizers.SGD(0.002, momentum=0.5)
        model.compile(optimizer, "mse", steps_per_execution=8)
        losses = model.fit(dataset, epochs=2, verbose=0).history["loss"]
        evaluated = model.evaluate(dataset, verbose=0)
        outputs = model.predict(dataset, verbose=0)
    print(name, *(f"{{loss:.9f}}" for loss in [*losses, evaluated]))
    own = x[index::count]
    print(f"{{name}}_OUTPUTS", outputs.shape, np.allclose(outputs, model(own), atol=1e-6))


train("REPLICAS", 2)
train("PIPELINES", 1)
train("UNBUILT", 2)
if "alone" not in sys.argv:
    print("NUMBERS", popdist.getNumTotalReplicas(), popdist.getNumLocalReplicas(),
          popdist.isPopdistEnvSet(), popdist.getDeviceId())
    popdist.execute_on_instances({{1}}, print, "SECOND one")
    popdist.synchronize()
"""
START = "from millrace.tools.cli.main import main; main()"


def lines(output):
    """The lines of a program that begin with a word in capitals, by that word."""
    return dict(re.findall(r"^([A-Z_]+) (.*)$", output, re.MULTILINE))


def numbers(text):
    return [float(each) for each in text.split()]


@idiom("Processes", "`poprun --num-replicas 4 --num-instances 2 python3 train.py`")
@idiom("Processes", "`fit`, `evaluate` and `predict` of each instance's part of the data")
@idiom("Processes", "a seed of its own in each instance: the weights of the first count")
@idiom("Processes", "a pipeline in each instance")
@pytest.mark.slow
def test_two_processes_train_as_one_does_on_all_data(program, tmp_path):
    expected = lines(program(TRAINING, "alone"))
    run = subprocess.run(
        [
            *(sys.executable, "-c", START, "poprun", "-v", "--host=localhost"),
            *("--num-replicas=4", "--num-instances", "2", "python3", "program.py"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k != "XLA_FLAGS"},
    )
    assert run.returncode == 0, run.stderr
    assert "without effect here: --host" in run.stderr
    (log,) = re.findall(r"process 1 writes to (\S+)", run.stderr)
    outputs = run.stdout, pathlib.Path(log).read_text()
    for index, output in enumerate(outputs):
        found = lines(output)
        for name in ("REPLICAS", "PIPELINES", "UNBUILT"):
            assert numbers(found[name]) == pytest.approx(numbers(expected[name]), rel=1e-6)
            assert found[f"{name}_OUTPUTS"] == "(128, 1) True"
        assert found["NUMBERS"] == f"4 2 True {2 * index}"
        assert ("SECOND" in found) == (index == 1)


@idiom("Processes", "an error in one instance, which the launcher names")
def test_an_error_goes_through_the_hook_that_tells_the_other_processes(tmp_path, monkeypatch):
    (tmp_path / "program.py").write_text("import tensorflow as tf\nraise ValueError('no luck')\n")
    seen = []
    monkeypatch.setattr(sys, "excepthook", lambda *args: seen.append(args))
    result = CliRunner().invoke(main, ["run", str(tmp_path / "program.py")])
    assert result.exit_code == 1
    ((kind, error, trace),) = seen
    assert (kind, str(error)) == (ValueError, "no luck")
    assert trace.tb_frame.f_code.co_filename == str(tmp_path / "program.py")


def test_strategy_run_on_several_processes(monkeypatch):
    strategy = ipu.distributed.popdist_strategy.PopDistStrategy()
    monkeypatch.setattr("millrace_ipu.ipu.distributed.popdist_strategy.process_count", lambda: 2)
    assert strategy.num_replicas_in_sync == 2
    monkeypatch.setattr("millrace_ipu.ipu.ipu_strategy.processes_of", lambda config: 2)
    with pytest.raises(UnsupportedError, match=r"of 2 processes .* Train with model.fit\(\)"):
        strategy.run(print)
