"""Own loops that are killed, and continue with the same bits."""

import keras
import numpy as np
import pytest
from ipu_loops_to_resume import IPU_LOOPS
from loops_to_resume import QUICK, SLOW, batches, small, trained

import millrace
from case_marks import with_marks
from millrace.api.checkpoints.named_parts import NamedParts
from millrace.errors import CheckpointError, OptionError
from millrace_ipu import tensorflow as tf
from millrace_ipu.ipu.config import reset_system
from millrace_ipu.tensorflow.compat import v1

CALLS = 6


@pytest.fixture(autouse=True)
def no_system():
    yield
    reset_system()
    v1.enable_v2_behavior()


class KilledError(Exception):
    pass


def run_loop(make, directory, seed, killed_at=None, save_every=2):
    """Runs a loop until it ends or is killed; returns its first call, losses, and last values."""
    tf.random.set_seed(seed)
    parts, values, call = make()
    calls = begin = millrace.restore_checkpoint(directory, values=values, **parts)
    losses = []
    try:
        while calls < CALLS:
            losses.append(np.array(call()))
            calls += 1
            if calls == killed_at:
                raise KilledError
            if calls % save_every == 0:
                millrace.save_checkpoint(directory, calls, values=values, **parts)
    except KilledError:
        pass
    found = NamedParts(parts)
    last = {
        name: [np.array(variable.value) for variable in own]
        for name, own in found.variables.items()
    }
    for queue in found.infeeds.values():
        queue.close()
    return begin, losses, last


def assert_same(found, expected):
    assert [each.tobytes() for each in found] == [each.tobytes() for each in expected]


def goes_on(make, tmp_path, kills):
    # Another seed for each process: what continues comes from the checkpoint.
    _, expected, last = run_loop(make, tmp_path / "whole", seed=0)
    assert len(expected) == CALLS
    assert len({each.tobytes() for each in expected}) == CALLS
    for killed_at in kills:
        directory = tmp_path / str(killed_at)
        begin, losses, _ = run_loop(make, directory, seed=0, killed_at=killed_at)
        assert begin == 0
        assert_same(losses, expected[:killed_at])
        begin, losses, values = run_loop(make, directory, seed=1)
        assert begin == (killed_at - 1) // 2 * 2
        assert_same(losses, expected[begin:])
        assert list(values) == list(last)
        for name, own in values.items():
            assert_same(own, last[name])


@pytest.mark.parametrize("make", QUICK, ids=lambda make: make.__name__)
def test_a_killed_loop_goes_on_with_the_same_bits(make, tmp_path):
    goes_on(make, tmp_path, [5])


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    with_marks(
        [*QUICK, *SLOW, *IPU_LOOPS],
        exhaustive=("generator_function", "several_passes", "replicas_that_drift"),
    ),
    ids=lambda make: make.__name__,
)
def test_a_loop_killed_anywhere_goes_on_with_the_same_bits(make, tmp_path):
    goes_on(make, tmp_path, [4, 5])


def made(**changes):
    """Returns the parts of a small loop that have run and been saved, some of them changed."""
    parts, _, call = small()
    return {**parts, **changes}, call


@pytest.fixture
def saved(tmp_path):
    parts, call = made()
    call()
    millrace.save_checkpoint(tmp_path, 4, values={"best": 0.5}, **parts)
    return tmp_path


def weights(*shape):
    return {name: keras.Variable(np.ones(shape, "float32")) for name in ("weight", "momentum")}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": weights(2)}, r"variable of weights\['weight'\] .* is float32\[2\] here"),
        (
            {"weights": {"weight": weights(3)["weight"]}},
            r"object weights\['momentum'\] is not named",
        ),
        ({"seed": keras.optimizers.SGD()}, "seed is SGD here and was SeedGenerator there"),
        ({"more": keras.Variable(1.0)}, "object more is named here and was not saved there"),
        ({"in": millrace.InfeedQueue([1.0] * 99)}, "in: the data set has 99 .* had 100 there"),
        (
            {"in": millrace.InfeedQueue([np.zeros(2, "float32")] * 100)},
            r"in: an element is .*2.* here and was .* there.*position in the data",
        ),
        ({"out": millrace.OutfeedQueue()}, "outfeed queue out is named here"),
    ],
)
def test_other_objects_are_refused_before_anything_is_changed(saved, changes, message):
    parts, _ = made(**changes)
    everything = [each for own in NamedParts(parts).variables.values() for each in own]
    before, state = [np.array(each) for each in everything], np.random.get_state()[2:]
    with pytest.raises(CheckpointError, match=message):
        millrace.restore_checkpoint(saved, values={}, **parts)
    assert_same([np.array(each) for each in everything], before)
    assert np.random.get_state()[2:] == state


def test_data_that_is_too_short_is_refused(saved):
    parts, _ = made(**{"in": millrace.InfeedQueue(lambda: iter([np.float32(1)] * 3))})
    with pytest.raises(CheckpointError, match="data ends after 3 elements, and 4 were used"):
        millrace.restore_checkpoint(saved, values={}, **parts)


def test_values_come_back_in_the_dict(saved):
    parts, _ = made()
    with pytest.raises(CheckpointError, match="value best is not named here and was saved there"):
        millrace.restore_checkpoint(saved, **parts)
    values = {"other": 1}
    assert millrace.restore_checkpoint(saved, values=values, **parts) == 4
    assert values == {"other": 1, "best": 0.5}


def test_no_checkpoint_is_step_0(tmp_path):
    assert millrace.restore_checkpoint(tmp_path / "none", **made()[0]) == 0
    assert not (tmp_path / "none").exists()


def test_arguments_that_are_refused(tmp_path):
    weight = keras.Variable(1.0)
    with pytest.raises(OptionError, match="step"):
        millrace.save_checkpoint(tmp_path, -1, weight=weight)
    with pytest.raises(OptionError, match="keep"):
        millrace.save_checkpoint(tmp_path, 1, keep=0, weight=weight)
    with pytest.raises(OptionError, match="values of save_checkpoint"):
        millrace.save_checkpoint(tmp_path, 1, values=[1], weight=weight)
    with pytest.raises(CheckpointError, match=r"count=3 of type int .* Set values="):
        millrace.save_checkpoint(tmp_path, 1, count=3)
    with pytest.raises(CheckpointError, match="f of values cannot be saved: it contains a value"):
        millrace.save_checkpoint(tmp_path, 1, values={"f": object()}, weight=weight)
    assert not list(tmp_path.glob("step*"))


def test_a_call_within_a_loop_is_refused(tmp_path):
    weight = keras.Variable(1.0)

    def body():
        millrace.save_checkpoint(tmp_path, 1, weight=weight)

    with pytest.raises(CheckpointError, match="while repeat of body is running or being traced"):
        millrace.repeat(2, body)

    @millrace.compile
    def train():
        millrace.restore_checkpoint(tmp_path, weight=weight)

    with pytest.raises(CheckpointError, match=r"restore_checkpoint\(\) was called while train is"):
        train()
    millrace.save_checkpoint(tmp_path, 1, weight=weight)  # no loop is running any more


def test_a_later_checkpoint_is_not_passed_by(saved):
    parts, _ = made()
    with pytest.raises(CheckpointError, match="has a checkpoint of step 4, and step 2 is to be"):
        millrace.save_checkpoint(saved, 2, **parts)


def test_as_many_checkpoints_are_kept_as_were_asked_for(tmp_path):
    weight = keras.Variable(1.0)
    for step in range(1, 6):
        millrace.save_checkpoint(tmp_path, step, keep=2, weight=weight)
    assert sorted(path.name for path in tmp_path.glob("step*")) == [
        "step-00000004",
        "step-00000005",
    ]


@pytest.mark.parametrize("mode", ["all", "last"])
def test_elements_that_nobody_has_read_are_saved(mode, tmp_path):
    def make():
        losses = millrace.OutfeedQueue(mode)

        def call(first):
            millrace.repeat(2, lambda k: (losses.enqueue({"z": k, "a": (k, k)}), k + 1)[1], first)

        return losses, call

    losses, call = make()
    call(0)
    if mode == "all":
        next(iter(losses))
    millrace.save_checkpoint(tmp_path, 1, losses=losses)
    other, call = make()
    assert millrace.restore_checkpoint(tmp_path, losses=other) == 1
    found = other.dequeue()
    assert list(found) == ["z", "a"]
    assert np.asarray(found["z"]).tolist() == ([1] if mode == "all" else 1)
    assert isinstance(found["a"], tuple)
    if mode == "all":
        call(5)
        assert other.dequeue()["a"][1].tolist() == [5, 6]
    np.testing.assert_array_equal(losses.dequeue()["z"], found["z"])  # as it was


def test_what_is_not_saved_is_reported_once(tmp_path, caplog):
    parts, call = made()
    losses = millrace.OutfeedQueue()
    forgotten = keras.Variable(0.0, name="forgotten")

    def body(x):
        forgotten.assign_add(x)
        losses.enqueue(x)

    call()
    infeed = millrace.InfeedQueue([np.float32(1)] * 5)
    millrace.repeat(2, body, infeed=infeed)
    for step in (1, 2):
        millrace.save_checkpoint(tmp_path, step, **parts)
    text = caplog.text
    assert text.count("Variables that loops assign are not saved") == 1
    assert "forgotten" in text
    assert text.count(f"The position of {infeed!r} is not saved") == 1
    assert text.count(f"{losses!r} has elements that nobody has read") == 1


def test_a_generator_that_has_been_used_is_refused(tmp_path):
    def make():
        weight, infeed = keras.Variable(0.0), millrace.InfeedQueue(iter([np.float32(1)] * 9))
        call = lambda: millrace.repeat(2, lambda x: (weight.assign_add(x), None)[1], infeed=infeed)  # noqa: E731
        return {"weight": weight, "infeed": infeed}, call

    parts, call = make()
    call()
    millrace.save_checkpoint(tmp_path, 1, **parts)
    parts, call = make()
    call()
    with pytest.raises(CheckpointError, match="2 elements of its list_iterator have been used"):
        millrace.restore_checkpoint(tmp_path, **parts)


def test_data_that_takes_long_to_be_read_again_is_announced(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("millrace.programs.feeds.source_position._SLOW_SECONDS", 0.0)
    parts, _ = made(**{"in": millrace.InfeedQueue(lambda: iter([np.float32(1)] * 9))})
    weight = keras.Variable(0.0)
    millrace.repeat(3, lambda x: (weight.assign_add(x), None)[1], infeed=parts["in"])
    millrace.save_checkpoint(tmp_path, 1, weight=weight, **parts)
    parts, _ = made(**{"in": millrace.InfeedQueue(lambda: iter([np.float32(1)] * 9))})
    millrace.restore_checkpoint(tmp_path, weight=weight, **parts)
    assert "read again up to element 3, which takes some" in caplog.text


@pytest.mark.slow
def test_checkpoints_of_a_fit_and_of_a_loop_refuse_each_other(tmp_path):
    strategy = millrace.Strategy(devices=1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones((8, 3), "float32")
    checkpoint = millrace.callbacks.Checkpoint
    model.fit(x, x[:, :1], callbacks=[checkpoint(tmp_path / "fit")], verbose=0)
    with pytest.raises(CheckpointError, match=r"is of a fit: callbacks\.Checkpoint has written it"):
        millrace.restore_checkpoint(tmp_path / "fit", model=model)
    with pytest.raises(CheckpointError, match="is of a fit"):
        millrace.save_checkpoint(tmp_path / "fit", 9, model=model)
    millrace.save_checkpoint(tmp_path / "own", 9, model=model)
    with pytest.raises(CheckpointError, match=r"Another training|is not of a fit"):
        model.fit(x, x[:, :1], callbacks=[checkpoint(tmp_path / "own")], verbose=0)


@pytest.mark.slow
def test_an_object_that_fit_trains_is_refused(tmp_path):
    strategy = millrace.Strategy(devices=1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones((8, 3), "float32")
    save = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: millrace.save_checkpoint(tmp_path, 1, model=model)
    )
    with pytest.raises(CheckpointError, match="model is being trained by fit"):
        model.fit(x, x[:, :1], callbacks=[save], verbose=0)


@pytest.mark.slow
def test_an_optimizer_with_other_settings_is_refused(tmp_path):
    parts, _, call = trained(batches(), optimizer=keras.optimizers.Adam(0.01))
    call()
    millrace.save_checkpoint(tmp_path, 1, **parts)
    for optimizer, message in (
        (keras.optimizers.Adam(0.01, beta_1=0.5), "beta_1 of optimizer is 0.5 here and was 0.9"),
        (keras.optimizers.SGD(0.01), "optimizer is SGD here and was Adam there"),
    ):
        parts, _, _ = trained(batches(), optimizer=optimizer)
        with pytest.raises(CheckpointError, match=message):
            millrace.restore_checkpoint(tmp_path, **parts)
