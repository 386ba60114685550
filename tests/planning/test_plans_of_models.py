"""`strategy.plan`, as a user calls it: memory as compiled, losses as plain Keras."""

from dataclasses import replace

import keras
import numpy as np
import plan_cases as cases
import pytest

import millrace
from millrace.errors import DataError, ModelError, NotCompiledError, OptionError, PlanError

ROWS = 64


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_applied_plan_has_the_memory_it_says_and_the_losses_of_keras(devices):
    strategy = cases.strategy_of(devices)
    model = cases.attached(strategy, cases.mlp)
    x, y = cases.data(model, 3 * ROWS + 24)  # the last update is smaller
    expected = cases.losses_of_keras(cases.mlp, x, y, ROWS, epochs=2)
    plan = strategy.plan(model, (x[:ROWS], y[:ROWS]), memory="1GB")
    assert plan.fits
    assert plan.chosen.update.rows == ROWS
    assert plan.apply() == plan.batch_size
    cases.check_applied(strategy, plan, model, x, y, expected, 10**9, epochs=2)


def test_less_memory_is_kept_to(strategy):
    model = cases.attached(strategy, cases.mlp)
    x, y = cases.data(model, 4 * ROWS)
    batch = x[:ROWS], y[:ROWS]
    plain = strategy.memory_report(model, batch).peak
    plan = strategy.plan(model, batch, memory=int(0.8 * plain))
    plan.apply()
    expected = cases.losses_of_keras(cases.mlp, x, y, ROWS)
    cases.check_applied(strategy, plan, model, x, y, expected, int(0.8 * plain))
    with pytest.raises(
        PlanError, match=r"(?s)the smallest takes [0-9,]+ bytes.*Set memory="
    ) as error:
        strategy.plan(model, batch, memory=1000)
    least = int(str(error.value).partition("Set memory=")[2].split()[0])
    assert 1000 < least < plain


@pytest.fixture(scope="module")
def planned():
    strategy = cases.strategy_of(2)
    model = cases.attached(strategy, cases.mlp)
    x, y = cases.data(model, 4 * ROWS)
    return strategy, model, x, y, strategy.plan(model, (x[:ROWS], y[:ROWS]), "1 GB")


@pytest.mark.slow
def test_every_alternative_trains_as_keras_does(planned):
    strategy, model, x, y, plan = planned
    expected = cases.losses_of_keras(cases.mlp, x, y, ROWS, epochs=2)
    layouts = {each.update.layout for each in plan.alternatives}
    assert len(layouts) > 1  # replicas, and stages
    for number in range(1, len(plan.alternatives) + 1):
        trained = cases.attached(strategy, cases.mlp)
        chosen = replace(plan, alternatives=(plan.alternative(number),))
        assert plan.apply(number, model=trained) == chosen.batch_size
        cases.check_applied(strategy, chosen, trained, x, y, expected, 10**9, epochs=2)
    plan.apply()
    cases.check_applied(strategy, plan, model, x, y, expected, 10**9, epochs=2)
    again = strategy.plan(model, (x[:ROWS], y[:ROWS]), "1 GB")  # after fit, and after apply
    assert again.chosen.update == plan.chosen.update


def test_it_prints_a_table(planned):
    *_, plan = planned
    text = str(plan)
    assert "mlp, updates of float32[64,16], float32[64,1]" in text
    assert "cpu:0" in text
    assert "1.00 GB" in text
    header = next(line for line in text.splitlines() if "peak" in line).split()
    assert header[:5] == ["time", "peak", "bubble", "FLOPs", "moved"]
    assert f"batch_size={plan.batch_size}" in text
    seconds = [each.seconds for each in plan.alternatives]
    assert seconds == sorted(seconds)
    assert all(each.fits for each in plan.alternatives)


def test_a_plan_is_saved_loaded_and_compared(planned, tmp_path):
    _, model, _, _, plan = planned
    path = tmp_path / "plan.json"
    plan.save(path)
    loaded = millrace.TrainingPlan.load(path)
    assert loaded == plan
    assert str(loaded) == str(plan)
    assert loaded.diff(plan) == "The plans are the same."
    with pytest.raises(ModelError, match=r"was loaded.*apply\(model=model\)"):
        loaded.apply()
    assert loaded.apply(model=model) == plan.batch_size
    other = replace(plan, memory=2 * 10**9, batch="float32[32,16]")
    difference = plan.diff(other)
    assert "1.00 GB" in difference
    assert "2.00 GB" in difference
    assert "float32[32,16]" in difference
    with pytest.raises(OptionError, match=r"diff\(\) compares two training plans.*int"):
        plan.diff(3)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"format": 1', '"format": 99'),
        ('"memory": ', '"memory": -'),
        ('"replicas": 2', '"replicas": "two"'),
        ('"alternatives": [', '"alternatives": [7, '),
        ("{", "["),
    ],
)
def test_a_damaged_file_is_refused(planned, tmp_path, old, new):
    *_, plan = planned
    path = tmp_path / "plan.json"
    plan.save(path)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(OptionError, match=r"no training plan.*Make the plan again"):
        millrace.TrainingPlan.load(path)


def test_a_file_chooses_no_file_to_read(planned, tmp_path):
    _, model, _, _, plan = planned
    path, secret = tmp_path / "plan.json", tmp_path / "schedule.txt"
    secret.write_text("0F0 0B0\n1F0 1B0")
    plan.save(path)
    text = path.read_text()
    piped = next(each.update for each in plan.alternatives if each.update.stages > 1)
    text = text.replace(f'"schedule": "{piped.schedule}"', f'"schedule": "{secret}"')
    path.write_text(text)
    loaded = millrace.TrainingPlan.load(path)
    number = next(k for k, each in enumerate(plan.alternatives, 1) if each.update == piped)
    with pytest.raises(OptionError, match=r"schedule.*which is none of gpipe"):
        loaded.apply(number, model=model)


def test_missing_files_and_numbers(planned, tmp_path):
    *_, plan = planned
    with pytest.raises(OptionError, match=r"cannot be read.*plan.save"):
        millrace.TrainingPlan.load(tmp_path / "none.json")
    with pytest.raises(OptionError, match=r"cannot be written"):
        plan.save(tmp_path / "none" / "plan.json")
    for number in (0, len(plan.alternatives) + 1, True, "first"):
        with pytest.raises(OptionError, match=r"has the alternatives 1 to"):
            plan.apply(number)


def test_wrong_uses(strategy, planned):
    other, model, x, y, plan = planned
    with pytest.raises(ModelError, match=r"plan\(\) takes a model of this strategy"):
        strategy.plan(model, (x[:8], y[:8]), "1GB")
    with pytest.raises(ModelError, match=r"an object of type int"):
        strategy.plan(3, (x[:8], y[:8]), "1GB")
    with pytest.raises(ModelError, match=r"apply\(\) takes a model of a strategy"):
        plan.apply(model=cases.mlp())
    piped = next(k for k, a in enumerate(plan.alternatives, 1) if a.update.stages > 1)
    with pytest.raises(OptionError, match=r"stages for 3 layer calls, and 'residual' makes 7"):
        plan.apply(piped, model=cases.attached(other, cases.residual))
    mine = cases.attached(strategy, cases.mlp)
    with pytest.raises(PlanError, match=r"for 2 devices.*has 1"):
        plan.apply(model=mine)
    with pytest.raises(OptionError, match=r"reports no memory.*memory='12GB'"):
        strategy.plan(mine, (x[:8], y[:8]))
    for memory in (0.5, -3, "much", True):
        with pytest.raises(OptionError, match=r"memory is the bytes of one device"):
            strategy.plan(mine, (x[:8], y[:8]), memory)
    with pytest.raises(OptionError, match=r"batch_spec"):
        strategy.plan(mine, (x, y, x, y), "1GB")
    with pytest.raises(DataError, match=r"Set batch_spec to \(x\[:32\], y\[:32\]\)"):
        strategy.plan(mine, x[:8], "1GB")
    with strategy.scope():
        uncompiled = cases.mlp()
    with pytest.raises(NotCompiledError, match=r"before plan\(\)"):
        strategy.plan(uncompiled, (x[:8], y[:8]), "1GB")
    one_layer = cases.attached(other, cases.one_layer)
    with pytest.raises(PlanError, match=r"3 rows.*over 2 devices.*Set batch_spec to 2 rows"):
        other.plan(one_layer, (x[:3], y[:3]), "1GB")


@pytest.mark.slow
def test_steps_per_execution_counts_updates(strategy):
    model = cases.attached(strategy, cases.mlp, steps_per_execution=4)
    x, y = cases.data(model, 8 * ROWS)
    batch = x[:ROWS], y[:ROWS]
    peak = strategy.memory_report(model, batch).peak
    plan = strategy.plan(model, batch, memory=int(0.8 * peak))
    plan.apply()
    update = plan.chosen.update
    assert model.steps_per_execution == update.steps_per_execution == 4
    assert plan.batch_size == ROWS
    expected = cases.losses_of_keras(cases.mlp, x, y, ROWS)
    cases.check_applied(strategy, plan, model, x, y, expected, int(0.8 * peak))


def test_options_that_are_not_planned_stay(strategy):
    model = cases.attached(strategy, cases.mlp)
    x, y = cases.data(model, ROWS)
    model.set_asynchronous_callbacks(True)
    model.set_infeed_queue_options(prefetch_depth=3)
    model.set_recomputation_options(mode="auto")
    strategy.plan(model, (x, y), "1GB").apply()
    options = model._millrace.setup.options
    assert options.asynchronous_callbacks
    assert options.feed.prefetch_depth == 3
    assert options.recomputation.mode.value == "none"  # of the plan


def test_own_train_steps_are_planned_without_stages():
    class Own(keras.Sequential):
        def train_step(self, *args, **kwargs):
            return super().train_step(*args, **kwargs)

    def build():
        return Own([keras.Input((16,)), cases.dense(8), cases.dense(1)], name="own")

    strategy = cases.strategy_of(1)
    model = cases.attached(strategy, build)
    x, y = cases.data(model, ROWS)
    plan = strategy.plan(model, (x, y), "1GB")
    assert plan.chosen.update.layout == "1 x 1"
    two = cases.strategy_of(2)
    plan = two.plan(cases.attached(two, build), (x, y), "1GB")
    assert plan.chosen.update.layout == "2 x 1"


def test_stages_in_call_need_their_devices(strategy):
    class Staged(keras.Model):
        def __init__(self):
            super().__init__(name="staged")
            self.hidden, self.head = cases.dense(8), cases.dense(1)

        def call(self, x):
            with millrace.PipelineStage(0):
                x = self.hidden(x)
            with millrace.PipelineStage(1):
                return self.head(x)

    batch = ((ROWS, 16), "float32"), ((ROWS, 1), "float32")
    with pytest.raises(PlanError, match=r"enters 2 pipeline stages.*Set Strategy\(devices=2\)"):
        strategy.plan(cases.attached(strategy, Staged), batch, "1GB")
    two = cases.strategy_of(2)
    plan = two.plan(cases.attached(two, Staged), batch, "1GB")
    assert {each.update.layout for each in plan.alternatives} == {"1 x 2"}


@pytest.mark.slow
def test_measured_times_are_seconds():
    strategy = cases.strategy_of(2)
    model = cases.attached(strategy, cases.residual)
    x, y = cases.data(model, 2 * ROWS)
    weights = model.get_weights()
    plan = strategy.plan(model, (x[:ROWS], y[:ROWS]), "1GB", measure=True)
    assert plan.is_measured
    assert " ms" in str(plan)
    assert all(0 < each.seconds < 60 for each in plan.alternatives)
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)  # zeros were trained, not the model
    assert strategy.statistics().executions == 0
    expected = cases.losses_of_keras(cases.residual, x, y, ROWS)
    plan.apply()
    cases.check_applied(strategy, plan, model, x, y, expected, 10**9)


@pytest.mark.slow
def test_measurements_leave_queues_and_callbacks_alone(strategy):
    queue = millrace.OutfeedQueue()

    def build():
        hidden = [cases.dense(8), millrace.layers.Outfeed(queue), cases.dense(1)]
        return keras.Sequential([keras.Input((16,)), *hidden], name="enqueues")

    model = cases.attached(strategy, build)
    x, y = cases.data(model, 2 * ROWS)
    strategy.plan(model, (x[:ROWS], y[:ROWS]), "1GB", measure=True).apply()
    assert queue.unread() == []
    model.fit(x, y, batch_size=ROWS, verbose=0)
    (values,) = queue.dequeue().values()
    assert values.shape == (2, ROWS, 8)


BUILDS = (cases.mlp, cases.conv, cases.text, cases.residual, cases.two_inputs, cases.attention)


# Half a minute each, as most on four devices are.
SELDOM = {(cases.text, 1), (cases.residual, 2), (cases.two_inputs, 2)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "devices"),
    [
        pytest.param(
            build,
            devices,
            id=f"{build.__name__}-{devices}",
            marks=[pytest.mark.exhaustive]
            if (devices == 4 and build is not cases.conv) or (build, devices) in SELDOM
            else [],
        )
        for build in BUILDS
        for devices in (1, 2, 4)
    ],
)
def test_models_and_budgets(build, devices):
    strategy = cases.strategy_of(devices)
    model = cases.attached(strategy, build)
    x, y = cases.data(model, 3 * ROWS)
    batch = cases.first(x, ROWS), y[:ROWS]
    weights = model.get_weights()
    expected = cases.losses_of_keras(build, x, y, ROWS, epochs=2)
    peak = strategy.plan(model, batch, "1GB").chosen.peak
    fitting = 0
    for share in (1.0, 0.7, 0.55):
        memory = int(peak * share)
        try:
            plan = strategy.plan(model, batch, memory)
        except PlanError as error:
            least = int(str(error).partition("Set memory=")[2].split()[0])
            assert least > memory
            continue
        fitting += 1
        model.set_weights(weights)
        model.compile("adam", "mse")
        plan.apply()
        cases.check_applied(strategy, plan, model, x, y, expected, memory, epochs=2)
    assert fitting >= 2


@pytest.mark.slow
def test_a_v_is_chosen_where_memory_says_so():
    """Seven rows are not shared out over two or four replicas."""
    strategy = cases.strategy_of(4)
    model = cases.attached(strategy, cases.positions, "sgd")
    x, y = cases.data(model, 21)
    batch = x[:7], y[:7]
    plain = strategy.plan(model, batch, "1GB").chosen
    assert plain.update.schedule == "looped"
    memory = int(0.5 * plain.peak)
    plan = strategy.plan(model, batch, memory)
    assert plan.chosen.update.schedule == "v_half"
    assert strategy.plan(model, batch, int(0.4 * plain.peak)).chosen.update.schedule == "v_min"
    expected = cases.losses_of_keras(cases.positions, x, y, 7, "sgd", epochs=2)
    plan.apply()
    cases.check_applied(strategy, plan, model, x, y, expected, memory, epochs=2)
