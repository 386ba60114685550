"""What rests in host memory, where, and that nothing is computed otherwise.

XLA's CPU backend enforces memory kinds in types and keeps everything in one memory. So these tests
say that there is host memory, and see all moves; only bytes are not saved.
"""

import jax
import keras
import numpy as np
import pytest
from keras import layers

import millrace
from millrace._compat import jax_memory as jax_spaces
from millrace.api.strategy.attach import detach
from millrace.base.options import NO_OFFLOAD, Accumulation, Offload, Replication
from millrace.programs.plan import BatchSpec, LoopForm, Mode, Plan
from millrace.programs.steps import offload
from millrace.programs.steps.state import state_of
from millrace.run.compiled_loop.programs import ProgramBuilder
from millrace.run.pipelines.runtime.activation_offload import ActivationOffload
from millrace.run.schedules.one_f_one_b import one_f_one_b
from millrace.run.schedules.sequential import sequential

ROWS, BATCH = 44, 4
STATE = "offload_weight_update_variables"
BUFFERS = "offload_gradient_accumulation_buffers"
ACTIVATIONS = "offload_activations"


# The CPU compiler of jax 0.10.0 knows no memory kinds, so there is nothing to look at.
pytestmark = pytest.mark.skipif(
    jax.__version__ == "0.10.0", reason="its CPU compiler knows no memory kinds"
)


@pytest.fixture(autouse=True)
def host_memory(monkeypatch):
    monkeypatch.setattr(jax_spaces, "is_another_memory", lambda device: True)


def data():
    x = np.random.default_rng(0).normal(size=(ROWS, 16)).astype("float32")
    return x, x[:, :1]


def build(devices=1, optimizer="adam", steps_per_execution=1, cls=keras.Sequential):
    keras.utils.set_random_seed(0)
    if optimizer == "sgd":
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9, clipnorm=1.0)
    elif optimizer == "average":
        optimizer = keras.optimizers.AdamW(use_ema=True, ema_overwrite_frequency=3)
    with millrace.Strategy(devices=devices).scope():
        model = cls(
            [
                keras.Input((16,)),
                layers.Dense(32, activation="relu"),
                layers.Dropout(0.2),
                layers.BatchNormalization(),
                layers.Dense(1),
            ]
        )
    model.compile(optimizer, "mse", metrics=["mae"], steps_per_execution=steps_per_execution)
    return model


def fit(model, epochs=2, **arguments):
    arguments = {"batch_size": BATCH, "verbose": 0, "shuffle": False, **arguments}
    return model.fit(*data(), epochs=epochs, **arguments).history


def kinds(model):
    """Memory kinds of the optimizer's values by whether they are large enough to rest."""
    found = {True: set(), False: set()}
    for variable in model.optimizer.variables:
        value = variable.value
        size = np.prod(value.sharding.shard_shape(value.shape)) * value.dtype.itemsize
        found[bool(size >= 128)].add(value.sharding.memory_kind)
    return found


def values(model):
    return [np.asarray(v.value) for v in [*model.variables, *model.optimizer.variables]]


def check_same(make, choose, epochs=2, **arguments):
    """Trains with and without offload, compares all bits, and returns the model with offload."""
    found = []
    for on in (False, True):
        model = make()
        choose(model, on)
        history = fit(model, epochs, **arguments)
        found.append((model, history, values(model)))
    (_, history, expected), (model, other, got) = found
    assert history == other
    for one, two in zip(expected, got, strict=True):
        np.testing.assert_array_equal(one, two)
    assert kinds(model) == {True: {"pinned_host"}, False: {"device"}}
    assert {v.value.sharding.memory_kind for v in model.variables} == {"device"}
    assert kinds(found[0][0])[True] == {"device"}
    return model


def accumulating(steps, **others):
    def choose(model, on):
        model.set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica=steps,
            **dict.fromkeys((STATE, *others), on),
        )

    return choose


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "average"])
def test_a_plain_step(optimizer):
    model = check_same(lambda: build(1, optimizer, 4), accumulating(1))
    model(data()[0])  # outside of its loop
    model.predict(data()[0], verbose=0)
    model.evaluate(*data(), verbose=0)


@pytest.mark.slow
@pytest.mark.parametrize("steps_per_execution", [4, 12])
def test_accumulation_with_the_accumulators_in_host_memory(steps_per_execution):
    # 11 batches: the last window of an epoch is shorter and runs as accumulate and apply.
    check_same(lambda: build(1, "adam", steps_per_execution), accumulating(4, **{BUFFERS: True}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "sharing"),
    [
        (2, True),
        (2, False),
        (4, False),
        (4, True),
    ],
)
def test_replicas(replicas, sharing):
    def choose(model, on):
        accumulating(3, **{BUFFERS: True})(model, on)
        model.set_replication_options(replicated_optimizer_state_sharding=sharing)

    model = check_same(lambda: build(replicas, "adam", 3 * replicas), choose)
    slots = [v.value for v in model.optimizer.variables if v.value.ndim == 2]
    shared = [not slot.sharding.is_fully_replicated for slot in slots]
    assert all(shared) if sharing else not any(shared)


@pytest.mark.slow
def test_weights_that_replicas_share_out():
    seen = []

    def choose(model, on):
        model.set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica=2, offload_gradient_accumulation_buffers=on
        )
        model.set_replication_options(
            replicated_optimizer_state_sharding=True,
            replicated_weight_sharding=True,
            offload_weight_update_variables=on,
            offload_weights=on,
        )

    def look(batch, logs):
        state = seen[-1]._jax_state
        seen[:] = [seen[-1], {v.sharding.memory_kind for v in state["trainable_variables"]}]
        seen.reverse()

    def make():
        seen[:] = [build(2, "adam", 4)]
        return seen[0]

    check_same(make, choose, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=look)])
    assert "pinned_host" in seen[0]


def pipelined(schedule, **options):
    def choose(model, on):
        model.set_pipeline_stage_assignment([0, 0, 1, 1])
        model.set_pipelining_options(
            pipeline_schedule=schedule,
            **{
                "gradient_accumulation_steps_per_replica": 4,
                STATE: on,
                BUFFERS: on,
                ACTIVATIONS: on,
                **options,
            },
        )

    return choose


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "devices", "options"),
    [
        ("1f1b", 2, {}),
        ("zero_bubble", 2, {}),
        ("sequential", 1, {"device_mapping": [0, 0]}),
        (
            None,
            1,
            {"gradient_accumulation_steps_per_replica": 2, "batch_serialization_iterations": 2},
        ),
    ],
)
def test_pipelines(schedule, devices, options):
    model = check_same(lambda: build(devices, "sgd", 4), pipelined(schedule, **options))
    model(data()[0])


@pytest.mark.slow
def test_a_slot_that_an_update_makes_anew_takes_no_memory_of_another_kind():
    # Adafactor does not read what it has of a kernel here; the kernel has the same shape.
    optimizer = keras.optimizers.Adafactor
    check_same(lambda: build(2, optimizer(0.01), 4), pipelined("1f1b"), epochs=1)


@pytest.mark.slow
def test_a_stage_that_takes_the_gradients_of_all():
    # The norm is one of gradients that are zero where one of them is infinite, at any stage.
    def build_scaled():
        model = build(2, "sgd", 4)
        sgd = keras.optimizers.SGD(0.01, momentum=0.9, global_clipnorm=1.0)
        model.compile(keras.optimizers.LossScaleOptimizer(sgd), "mse", steps_per_execution=4)
        return model

    check_same(build_scaled, pipelined("1f1b"), epochs=1)


@pytest.mark.slow
@pytest.mark.parametrize("weights", [False, True])
def test_pipelines_with_replicas(weights):
    def choose(model, on):
        shared = {"replicated_weight_sharding": True, "replicated_optimizer_state_sharding": True}
        more = {**shared, "offload_weights": on} if weights else {}
        pipelined("1f1b", **more)(model, on)

    check_same(lambda: build(4, "adam", 8), choose)


def test_a_train_step_of_the_users_own():
    class Own(keras.Sequential):
        def train_step(self, state, data):
            logs, state = super().train_step(state, data)
            return {**logs, "twice": 2 * logs["loss"]}, state

    check_same(lambda: build(1, "adam", 4, Own), accumulating(1))


@pytest.mark.slow
def test_training_goes_on_without_offload_and_outside_of_a_strategy():
    expected = build(1, "adam", 4)
    fit(expected, 6)
    model = build(1, "adam", 4)
    accumulating(1)(model, True)
    fit(model, 2)
    accumulating(1)(model, False)
    fit(model, 2, initial_epoch=0)
    assert kinds(model)[True] == {"device"}
    accumulating(1)(model, True)
    fit(model, 1)
    detach(model)
    assert kinds(model)[True] == {"device"}
    fit(model, 1)
    np.testing.assert_allclose(values(model)[0], values(expected)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_saving_and_loading(tmp_path):
    model = build(1, "adam", 4)
    accumulating(2)(model, True)
    fit(model, 1)
    model.save(tmp_path / "model.keras")
    with millrace.Strategy(devices=1).scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    pairs = zip(
        [*model.weights, *model.optimizer.variables],
        [*loaded.weights, *loaded.optimizer.variables],
        strict=True,
    )
    for one, two in pairs:
        if not one.path.endswith("seed_generator_state"):  # which Keras does not save
            np.testing.assert_array_equal(np.asarray(one.value), np.asarray(two.value))
    fit(loaded, 1)
    assert kinds(loaded)[True] == {"pinned_host"}


@pytest.mark.slow
def test_averages_that_become_weights_in_a_callback():
    def make():
        return build(1, keras.optimizers.Adam(use_ema=True), 4)

    swap = keras.callbacks.SwapEMAWeights
    model = make()
    accumulating(1)(model, True)
    fit(model, callbacks=[swap(swap_on_epoch=True)], validation_data=data())
    model(data()[0])
    expected = make()
    fit(expected, callbacks=[swap(swap_on_epoch=True)], validation_data=data())
    np.testing.assert_array_equal(model.get_weights()[0], expected.get_weights()[0])


def specs(model):
    return state_of(model, Mode.TRAIN, lambda v: jax.ShapeDtypeStruct(tuple(v.shape), v.dtype))


def lowered_for_gpu(plan, program):
    arguments = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=s.sharding or plan.group.whole),
        program.arguments,
    )
    jitted = jax.jit(program.function, donate_argnums=(0,), out_shardings=program.results)
    return jitted.trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("steps", [1, 4])
def test_a_gpu_is_told_to_move_within_the_loop(steps):
    model = build()
    fit(model, 1)
    leaves, tree = jax.tree.flatten(data())
    del leaves
    float32 = np.dtype("float32")
    plan = Plan(
        mode=Mode.TRAIN,
        batch=BatchSpec(tree, ((4, 16), (4, 1)), (float32, float32)),
        capacity=8,
        accumulation=Accumulation(steps=steps),
        step_logs=False,
        records=0,
        group=millrace.base.devices.DeviceGroup(tuple(jax.devices()[:1])),
        replication=Replication(),
        offload=Offload(optimizer_state=True),
    )
    program = ProgramBuilder(model, plan, specs(model)).run(LoopForm(None))
    text = lowered_for_gpu(plan, program)
    placed = [line for line in text.splitlines() if "annotate_device_placement" in line]
    resting = sum(v.value.nbytes >= 128 for v in model.optimizer.variables)
    in_loop = [line for line in placed if line.startswith("      ")]
    assert sum('"pinned_host"' in line for line in in_loop) == resting
    assert sum('"device"' in line for line in in_loop) == resting
    assert text.count('mhlo.memory_kind = "pinned_host"') >= resting


def plan_of(model_devices, **chosen):
    return Plan(
        mode=Mode.TRAIN,
        batch=BatchSpec(None, (), ()),
        capacity=1,
        accumulation=Accumulation(steps=2),
        step_logs=False,
        records=0,
        group=millrace.base.devices.DeviceGroup(tuple(jax.devices()[:model_devices])),
        replication=Replication(),
        offload=Offload(**chosen) if chosen else NO_OFFLOAD,
    )


def test_small_values_stay_on_the_device():
    plan = plan_of(1, optimizer_state=True)
    whole = plan.group.whole

    def rests(size, plan=plan, layout=whole, role="optimizer"):
        spec = jax.ShapeDtypeStruct((size,), np.float32)
        return offload.host_layout(plan, role, spec, layout) is not None

    assert not rests(31)
    assert rests(32)
    assert not rests(32, role="gradient")
    assert not rests(32, role="metric")
    assert not rests(32, plan=plan_of(1))
    four = plan_of(4, optimizer_state=True, weights=True)
    assert not rests(127 - 3, four, four.group.split(0))  # each has 124 bytes
    assert rests(128, four, four.group.split(0))
    assert rests(128, four, four.group.split(0), "trainable")
    assert not rests(128, four, four.group.whole, "trainable")  # not shared out


class Waiting:
    """Buffers that only note what is moved where."""

    def __init__(self):
        self.moves = []

    def replace(self, stage, micro_batch, move):
        self.moves.append((move.__name__, stage, micro_batch))


def moves(schedule):
    buffers = Waiting()
    offload = ActivationOffload(schedule, buffers)
    found = []
    for task in schedule[0]:
        offload.before(task)
        offload.after(task)
        found += [f"{task} {name} {m}" for name, _, m in buffers.moves]
        buffers.moves.clear()
    return found


def test_what_waits_is_back_one_task_ahead():
    assert moves(one_f_one_b(3, 3)) == [
        "0F0 _to_host 0",
        "0F1 _to_host 1",
        "0F2 _to_device 0",  # while F2 runs
        "0F2 _to_host 2",
        "0B0 _to_device 1",
        "0B1 _to_device 2",
    ]


def test_a_stage_that_goes_straight_back_moves_nothing():
    last = one_f_one_b(2, 3)[1:]
    assert not [move for move in moves(last) if "_to_host" in move]
    assert not [move for move in moves(sequential(1, 3)) if "_to_host" in move]
