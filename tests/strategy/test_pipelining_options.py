"""What the methods of a pipelined model accept, keep and refuse."""

from dataclasses import replace

import keras
import numpy as np
import pytest
from keras import layers

import millrace
from millrace.base.options import Pipelining, RecomputationMode, Reduction
from millrace.errors import ModelError, OptionError, PlanError, ScheduleError

pytestmark = pytest.mark.quick


@pytest.fixture
def strategy():
    """A device for each of two stages: one replica of the pipeline."""
    return millrace.Strategy(devices="cpu:2")


@pytest.fixture
def one_device():
    return millrace.Strategy(devices=1)


def data(rows=8):
    x = np.random.default_rng(0).normal(size=(rows, 4)).astype("float32")
    return x, x[:, :1]


def sequential(strategy, cls=keras.Sequential, **compile_options):
    with strategy.scope():
        model = cls([keras.Input((4,)), *(layers.Dense(4) for _ in "abc"), layers.Dense(1)])
    model.compile("sgd", "mse", **{"steps_per_execution": 2, **compile_options})
    return model


def pipelined(strategy, stages=(0, 0, 1, 1), **options):
    model = sequential(strategy)
    model.set_pipeline_stage_assignment(list(stages))
    model.set_pipelining_options(
        **{"gradient_accumulation_steps_per_replica": 2, **options}  # type: ignore[arg-type]
    )
    return model


def fit(model):
    return model.fit(*data(), batch_size=2, verbose=0, shuffle=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (0, "at least 1. Received: 0"),
        (2.0, r"whole number.*Received: 2.0.*Set gradient_accumulation_steps_per_replica=2"),
        (True, "whole number"),
    ],
)
def test_the_number_of_micro_batches_is_whole(strategy, given, message):
    with pytest.raises(OptionError, match=message):
        sequential(strategy).set_pipelining_options(gradient_accumulation_steps_per_replica=given)


@pytest.mark.parametrize("given", [0, [], "01", {0: 1}])
def test_a_device_mapping_is_a_list(strategy, given):
    with pytest.raises(OptionError, match=r"device_mapping must be a list.*such as \[0, 1\]"):
        sequential(strategy).set_pipelining_options(device_mapping=given)


def test_a_device_mapping_holds_device_numbers(strategy):
    with pytest.raises(OptionError, match=r"device_mapping\[1\] must be at least 0. Received: -1"):
        sequential(strategy).set_pipelining_options(device_mapping=[0, -1])
    with pytest.raises(OptionError, match=r"device_mapping\[0\] must be a whole number"):
        sequential(strategy).set_pipelining_options(device_mapping=["a", 1])


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("gradient_accumulation_count", "gradient_accumulation_steps_per_replica"),
        ("experimental_normalize_gradients", "reduction_method='mean'"),
        ("computational_stages", "follows from the model"),
        ("repeat_count", "follows from"),
        ("inputs", "follows from"),
        ("infeed_queue", "follows from"),
        ("outfeed_queue", "follows from"),
        ("optimizer_function", "given to compile"),
        ("outfeed_loss", "callback"),
        ("outfeed_mask", "logs"),
        ("accumulate_outfeed", "always accumulate"),
        ("accumulate_outfeed_dtype", "always accumulate"),
        ("continuous_weight_updates", "stand still"),
        ("pipeline_schedul", "Did you mean pipeline_schedule?"),
    ],
)
def test_other_options_are_refused_with_what_to_do_instead(strategy, option, advice):
    with pytest.raises(OptionError, match=advice) as caught:
        sequential(strategy).set_pipelining_options(**{option: 1})
    assert option in str(caught.value)


@pytest.mark.parametrize("schedule", ["1f2b", "0F0 0X0", "no/such/file.txt", 3])
def test_an_unknown_schedule_is_refused_when_it_is_set(strategy, schedule):
    with pytest.raises(ScheduleError, match=r"1f1b|0X0"):
        sequential(strategy).set_pipelining_options(pipeline_schedule=schedule)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"forward_propagation_stages_compiler_options": {}}, "must be a list with a dict"),
        (
            {"backward_propagation_stages_compiler_options": [1, 2]},
            r"backward_propagation_stages_compiler_options\[0\] must be a dict.*Received: 1",
        ),
        ({"weight_update_compiler_options": [1]}, "must be a dict of compiler options"),
        ({"gradient_accumulation_reduction_method": "median"}, r"one of \['auto', 'mean', 'sum', "),
        ({"gradient_accumulation_dtype": "int8"}, "cannot hold gradients"),
    ],
)
def test_invalid_values(strategy, options, message):
    with pytest.raises(OptionError, match=message):
        sequential(strategy).set_pipelining_options(**options)


@pytest.mark.parametrize("which", ["forward", "backward"])
def test_compiler_options_are_one_dict_for_each_stage(strategy, which):
    name = f"{which}_propagation_stages_compiler_options"
    model = pipelined(strategy, **{name: [{}, {}, {}]})
    with pytest.raises(PlanError, match=f"{name} has 3 entries.*2 pipeline stages"):
        fit(model)


def test_a_second_call_keeps_what_it_leaves_out(strategy):
    model = sequential(strategy)
    stages = [{"xla_cpu_enable_fast_math": True}] * 2
    model.set_pipelining_options(
        gradient_accumulation_steps_per_replica=4,
        gradient_accumulation_reduction_method="sum",
        gradient_accumulation_dtype="float32",
        device_mapping=[0, 0],
        forward_propagation_stages_compiler_options=stages,
        backward_propagation_stages_compiler_options=stages,
        weight_update_compiler_options=stages[0],
        replicated_optimizer_state_sharding=True,
        recomputation_mode="recompute_and_backpropagate_interleaved",
        offload_weight_update_variables=False,
        batch_serialization_iterations=2,
    )
    first = model._millrace.setup.options
    assert first.pipelining.schedule_in_force == "sequential"
    model.set_pipelining_options()
    assert model._millrace.setup.options == first
    model.set_pipelining_options(
        gradient_accumulation_dtype="auto",
        device_mapping="auto",
        forward_propagation_stages_compiler_options=[],
        backward_propagation_stages_compiler_options="auto",
        weight_update_compiler_options={},
    )
    second = model._millrace.setup.options
    kept = Pipelining(steps=4, reduction=Reduction.SUM, batch_serialization=2, update_options={})
    assert second == replace(first, pipelining=kept)
    assert second.replication.shard_optimizer_state
    assert second.recomputation.mode is not RecomputationMode.NONE
    assert second.offload.optimizer_state is False


def test_fit_needs_the_number_of_micro_batches_and_evaluate_does_not(strategy):
    model = sequential(strategy)
    model.set_pipeline_stage_assignment([0, 0, 1, 1])
    with pytest.raises(PlanError, match=r"set_pipelining_options\(gradient_accumulation_steps"):
        fit(model)
    assert np.isfinite(model.evaluate(*data(), batch_size=2, verbose=0))
    assert model.predict(data()[0], batch_size=2, verbose=0).shape == (8, 1)


def test_executions_are_whole_updates(strategy):
    model = pipelined(strategy, gradient_accumulation_steps_per_replica=3)
    with pytest.raises(PlanError, match=r"steps_per_execution=2 .* = 3 x 1 = 3 steps"):
        fit(model)


def test_more_stages_than_devices(strategy):
    model = pipelined(strategy, (0, 1, 2, 3))
    message = r"\[0, 1, 2, 3\], and the strategy has 2.*cpu:4.*device_mapping=\[0, 1, 0, 1\]"
    with pytest.raises(PlanError, match=message):
        fit(model)
    model.set_pipelining_options(device_mapping=[0, 1, 0, 1])
    fit(model)


def test_a_mapping_of_another_length(strategy):
    with pytest.raises(PlanError, match=r"device_mapping=\[0, 1, 0\] has 3 entries.*has 2"):
        fit(pipelined(strategy, device_mapping=[0, 1, 0]))


def test_one_stage_is_no_pipeline(strategy):
    with pytest.raises(OptionError, match=r"at least two stages.*reset_pipeline_stage_assignment"):
        fit(pipelined(strategy, (0, 0, 0, 0)))


def test_layers_added_later_need_a_stage(strategy):
    model = pipelined(strategy)
    model.add(layers.Dense(1))
    with pytest.raises(PlanError, match=r"with 4 layer calls and now makes 5.*dense"):
        fit(model)
    model.set_pipeline_stage_assignment([0, 0, 1, 1, 1])
    model.compile("sgd", "mse", steps_per_execution=2)
    fit(model)


class OwnTrainStep(keras.Sequential):
    def train_step(self, state, data):
        return super().train_step(state, data)


class OwnTestStep(keras.Sequential):
    def test_step(self, state, data):
        return super().test_step(state, data)


class OwnPredictStep(keras.Sequential):
    def predict_step(self, state, data):
        return super().predict_step(state, data)


def test_steps_of_the_users_own_that_do_not_train_cannot_be_cut(strategy):
    model = sequential(strategy, OwnTrainStep)
    model.set_pipeline_stage_assignment([0, 0, 1, 1])
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=2)
    fit(model)
    model = sequential(strategy, OwnTestStep)
    model.set_pipeline_stage_assignment([0, 0, 1, 1])
    with pytest.raises(ModelError, match=r"OwnTestStep.*overrides test_step\(\)"):
        model.evaluate(*data(), batch_size=2, verbose=0)
    model = sequential(strategy, OwnPredictStep)
    model.set_pipeline_stage_assignment([0, 0, 1, 1])
    with pytest.raises(ModelError, match=r"overrides predict_step\(\)"):
        model.predict(data()[0], batch_size=2, verbose=0)


def test_an_optimizer_that_accumulates_itself_is_refused(strategy):
    model = pipelined(strategy)
    own = keras.optimizers.SGD(gradient_accumulation_steps=2)
    model.compile(own, "mse", steps_per_execution=2)
    with pytest.raises(PlanError, match="accumulate twice"):
        fit(model)


def test_looped_says_which_mapping_it_needs(strategy):
    model = pipelined(
        strategy, (0, 1, 2, 3), pipeline_schedule="looped", device_mapping=[0, 0, 1, 1]
    )
    with pytest.raises(ScheduleError, match=r"device_mapping=\[0, 1, 0, 1\]"):
        fit(model)


def test_a_v_says_which_mapping_or_number_of_stages_it_needs(strategy):
    model = pipelined(
        strategy, (0, 1, 2, 3), pipeline_schedule="v_half", device_mapping=[0, 0, 1, 1]
    )
    with pytest.raises(ScheduleError, match=r"schedule v_half.*device_mapping=\[0, 1, 1, 0\]"):
        fit(model)
    model.set_pipelining_options(device_mapping="auto")
    fit(model)
    model = pipelined(strategy, (0, 1, 1, 2), pipeline_schedule="v_half")
    with pytest.raises(ScheduleError, match=r"num_stages=3. Assign 2 or 4 stages"):
        fit(model)


@pytest.mark.parametrize("devices", ["cpu:1", "cpu:3"])
def test_the_number_of_stages_of_a_v_is_refused_before_that_of_devices(devices):
    model = pipelined(millrace.Strategy(devices=devices), (0, 1, 1, 2), pipeline_schedule="V_Min")
    with pytest.raises(ScheduleError, match=r"V_Min has two stages.*num_stages=3"):
        fit(model)


def test_a_v_on_too_few_devices():
    strategy = millrace.Strategy(devices="cpu:1")
    model = pipelined(strategy, (0, 1, 2, 3), pipeline_schedule="zb_v")
    with pytest.raises(
        PlanError, match=r"need the devices \[0, 1\].*has 1. Set devices to 2.*assign 2 stages"
    ):
        fit(model)


def test_a_text_for_other_stages(strategy):
    model = pipelined(strategy, pipeline_schedule="0F0 0F1 0B0 0B1")
    with pytest.raises(ScheduleError, match=r"1F0|stage 1"):
        fit(model)


def test_auto_needs_a_number_that_the_calls_allow(strategy):
    model = sequential(strategy)
    with pytest.raises(OptionError, match="num_stages=2"):
        model.set_pipeline_stage_assignment("auto")
    with pytest.raises(OptionError, match="Received: 'even'"):
        model.set_pipeline_stage_assignment("even", num_stages=2)
    with pytest.raises(OptionError, match=r"leave them out. Received: num_stages=2"):
        model.set_pipeline_stage_assignment([0, 0, 1, 1], num_stages=2)
    with pytest.raises(OptionError, match="4 layer calls cannot be cut into 5 stages"):
        model.set_pipeline_stage_assignment("auto", num_stages=5)
    with strategy.scope():
        deferred = keras.Sequential([layers.Dense(2), layers.Dense(1)])
    with pytest.raises(OptionError, match="2 layer calls cannot be cut into 3 stages"):
        deferred.set_pipeline_stage_assignment("auto", num_stages=3)
    batch = (np.ones((4, 3)), np.ones((4, 1)))
    with pytest.raises(ModelError, match=r"not built.*keras.Input"):
        deferred.set_pipeline_stage_assignment("auto", num_stages=2, batch_spec=batch)


def test_auto_balances_the_cost(strategy):
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(64),
                layers.Dense(64),
                layers.Dense(64),
                layers.Dense(2),
            ]
        )
    model.set_pipeline_stage_assignment("auto", num_stages=2)
    found = [each.pipeline_stage for each in model.get_pipeline_stage_assignment()]
    assert found == [0, 0, 1, 1]
    lines = []
    model.print_pipeline_stage_assignment_summary(print_fn=lines.append)
    second = model.layers[1].name
    assert lines[-2] == f"Stage 1 takes: {second}"
    assert lines[-1] == "FLOPs: forward and backward of a batch float32[32,8]"
    assert set(map(len, lines[1:-2])) == {60}
    shares = [float(line.split()[-1].rstrip("%")) for line in lines if line.strip().endswith("%")]
    assert sum(shares) == pytest.approx(100, abs=0.2)
    assert any(f"{64 * 64 + 64 + 64 * 2 + 2:,}" in line for line in lines)  # of stage 1


def test_scopes_make_a_pipeline_and_reset_unmakes_it(one_device):
    with one_device.scope():
        inputs = keras.Input((4,))
        with millrace.PipelineStage(0):
            hidden = layers.Dense(4)(inputs)
        with millrace.PipelineStage(1):
            outputs = layers.Dense(1)(hidden)
        model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse", steps_per_execution=2)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=2, device_mapping=[0, 0])
    fit(model)
    tasks = one_device.statistics().pipeline.tasks
    assert tasks > 0
    model.reset_pipeline_stage_assignment()
    assert [each.pipeline_stage for each in model.get_pipeline_stage_assignment()] == [None, None]
    fit(model)
    assert one_device.statistics().pipeline.tasks == tasks


def test_stages_and_options_travel_with_the_model(tmp_path, caplog):
    strategy = millrace.Strategy(devices="cpu:3")
    model = pipelined(strategy, (0, 1, 1, 2), pipeline_schedule="gpipe", device_mapping=[2, 0, 1])
    fit(model)
    expected = model.predict(data()[0], batch_size=2, verbose=0)
    model.save(tmp_path / "model.keras")
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    found = [each.pipeline_stage for each in loaded.get_pipeline_stage_assignment()]
    assert found == [0, 1, 1, 2]
    assert loaded._millrace.setup.options.pipelining == model._millrace.setup.options.pipelining
    for one, other in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert fit(loaded).history == fit(model).history
    stock = keras.models.load_model(tmp_path / "model.keras")  # outside of a scope
    found = stock.predict(data()[0], batch_size=2, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    model.set_pipelining_options(pipeline_schedule=lambda stages, steps: "")
    with caplog.at_level("INFO", "millrace"):
        model.save(tmp_path / "again.keras")
    assert "pipeline_schedule" in caplog.text


def test_a_stage_may_compute_nothing():
    """Dropout alone on a stage: nothing in evaluation. Two of them: nothing in training, too."""
    x, y = data()
    for stages in ([0, 1, 2, 3], [0, 1, 1, 2]):
        with millrace.Strategy(devices=max(stages) + 1).scope():
            model = keras.Sequential(
                [keras.Input((4,)), layers.Dense(4), layers.Identity(), layers.Dropout(0.5)]
            )
            model.add(layers.Dense(1))
        model.set_pipeline_stage_assignment(stages)
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=2)
        model.compile("sgd", "mse", steps_per_execution=2)
        fit(model)
        model.evaluate(x, y, batch_size=2, verbose=0)
        found = model.predict(x, batch_size=2, verbose=0)
        np.testing.assert_allclose(found, model(x), rtol=1e-6, atol=1e-6)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs)


def test_a_model_whose_calls_cannot_be_found_is_a_pipeline_for_nobody(one_device, monkeypatch):
    def fails(*arguments, **keywords):
        raise TypeError("not on shapes alone")

    with one_device.scope():
        with millrace.PipelineStage(0):  # in some other model: now every model is looked through
            layers.Dense(1)
        model = Subclassed()
    model(data()[0])
    model.compile("sgd", "mse", steps_per_execution=2)
    monkeypatch.setattr("millrace.run.pipelines.assignment.observed_calls.run_symbolically", fails)
    fit(model)
    assert one_device.statistics().pipeline.tasks == 0
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=2)
    with pytest.raises(ModelError, match="does not run on shapes alone: not on shapes"):
        fit(model)
