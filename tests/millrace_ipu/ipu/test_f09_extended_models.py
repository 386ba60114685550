import keras
import numpy as np
import pytest
from linear_models import linear, two_stages

from millrace_ipu.ipu.ipu_strategy import IPUStrategy
from millrace_ipu.ipu.keras.extensions import (
    FunctionalExtension,
    ModelExtension,
    SequentialExtension,
)

SETTERS = {
    "get_pipeline_stage_assignment",
    "print_pipeline_stage_assignment_summary",
    "reset_pipeline_stage_assignment",
    "set_asynchronous_callbacks",
    "set_gradient_accumulation_options",
    "set_infeed_queue_options",
    "set_outfeed_queue_options",
    "set_pipeline_stage_assignment",
    "set_pipelining_options",
    "set_replication_options",
}
ONES = np.ones((4, 1), "float32")


class Own(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)


def functional():
    inputs = keras.Input((1,))
    return keras.Model(inputs, keras.layers.Dense(1)(inputs))


MODELS = {
    SequentialExtension: lambda: keras.Sequential([keras.layers.Dense(1)]),
    FunctionalExtension: functional,
    ModelExtension: Own,
}


@pytest.mark.parametrize("kind", MODELS)
def test_f09_models_of_a_scope_have_the_setters_and_others_do_not(kind):
    with IPUStrategy().scope():
        model = MODELS[kind]()
        clone = keras.models.clone_model(model) if kind is not ModelExtension else model
    for each in (model, clone):
        assert all(hasattr(each, name) for name in SETTERS)
        assert [k for k in MODELS if isinstance(each, k)] == [kind]
    outside = MODELS[kind]()
    assert type(outside) is type(model)
    assert not any(hasattr(outside, name) for name in SETTERS)
    assert not isinstance(outside, kind)
    with pytest.raises(AttributeError, match="set_pipelining_options"):
        outside.set_pipelining_options()


def test_f09_without_extensions_models_have_no_setters():
    with IPUStrategy(enable_keras_extensions=False).scope():
        model = MODELS[SequentialExtension]()
    assert not hasattr(model, "set_outfeed_queue_options")
    assert not isinstance(model, SequentialExtension)


class OwnTrainStep(keras.Sequential):
    def train_step(self, state, data):
        return super().train_step(state, data)


class TrainStepOfTensorFlow(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


class OwnTestStep(keras.Sequential):
    def test_step(self, state, data):
        return super().test_step(state, data)


class OwnPredictStep(keras.Sequential):
    def predict_step(self, state, data):
        return super().predict_step(state, data)


class OwnCall(keras.Sequential):
    def call(self, *args, **kwargs):
        return super().call(*args, **kwargs)


class OwnTrainFunction(keras.Sequential):
    def make_train_function(self, force=False):
        return super().make_train_function(force)


class OwnPredictFunction(keras.Sequential):
    def make_predict_function(self, force=False):
        return super().make_predict_function(force)


def overriding(kind, name):
    with IPUStrategy().scope():
        layers = [keras.layers.Dense(2), keras.layers.Dense(1)]
        model = kind([keras.Input((1,)), *layers], name=name)
    model.compile("sgd", "mse", steps_per_execution=4)
    return model


@pytest.mark.parametrize(
    ("kind", "loop", "function"),
    [
        (OwnTrainStep, "fit", "train_step"),
        (TrainStepOfTensorFlow, "fit", "train_step"),
        (OwnTestStep, "evaluate", "test_step"),
        (OwnPredictStep, "predict", "predict_step"),
        (OwnCall, "predict", "call"),
    ],
)
def test_f09_overrides_that_a_pipeline_would_not_call(kind, loop, function, system):
    system(2)
    model = overriding(kind, "mine")
    assignment = model.get_pipeline_stage_assignment()
    for stage, each in enumerate(assignment):
        each.pipeline_stage = stage
    model.set_pipeline_stage_assignment(assignment)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    data = (ONES,) if loop == "predict" else (ONES, ONES)
    with pytest.raises(RuntimeError, match=rf"{kind.__name__} 'mine' is pipelined.* {function}\("):
        getattr(model, loop)(*data, batch_size=1)


def test_f09_an_overridden_train_step_accumulates():
    model = overriding(OwnTrainStep, "mine")
    model.set_gradient_accumulation_options(2)
    model.fit(ONES, ONES, batch_size=1)
    assert int(model.optimizer.iterations) == 2


@pytest.mark.parametrize(
    ("kind", "loop", "function"),
    [
        (OwnTrainFunction, "fit", "make_train_function"),
        (OwnPredictFunction, "predict", "make_predict_function"),
    ],
)
def test_f09_functions_that_the_strategy_provides(kind, loop, function):
    model = overriding(kind, "mine")
    data = (ONES,) if loop == "predict" else (ONES, ONES)
    with pytest.raises(RuntimeError, match=rf"'mine' overrides {function}.*enable_keras_ext.*=Fal"):
        getattr(model, loop)(*data, batch_size=1)


def test_f09_eager_models_are_refused():
    model = linear(IPUStrategy(), run_eagerly=True)
    for loop, data in (("fit", (ONES, ONES)), ("evaluate", (ONES, ONES)), ("predict", (ONES,))):
        with pytest.raises(RuntimeError, match=r"run_eagerly=True.*Remove run_eagerly"):
            getattr(model, loop)(*data, batch_size=1)


class OwnMinimize(keras.optimizers.SGD):
    def minimize(self, loss, variables):
        pass


class FromTheBase(keras.optimizers.Optimizer):
    def minimize(self, loss, variables):
        pass

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, gradient * learning_rate)


def test_f09_an_optimizer_that_overrides_minimize():
    for optimizer in (OwnMinimize(), keras.optimizers.LossScaleOptimizer(OwnMinimize())):
        model = linear(IPUStrategy(), steps_per_execution=2, optimizer=optimizer)
        model.set_gradient_accumulation_options(2)
        with pytest.raises(
            ValueError, match=r"OwnMinimize.* overrides minimize\(\).*Override update_step\("
        ):
            model.fit(ONES, ONES, batch_size=2, verbose=0)
        model.set_gradient_accumulation_options(1)
    model = linear(IPUStrategy(), steps_per_execution=2, optimizer=FromTheBase(0.1))
    model.set_gradient_accumulation_options(2)
    model.fit(ONES, ONES, batch_size=2, verbose=0)


def test_f09_setters_and_compile_discard_functions_and_the_asynchronous_flag_does_not(system):
    system(2)
    model = two_stages(IPUStrategy(), steps_per_execution=4)
    model.predict(ONES, batch_size=1, verbose=0)
    before = model.predict_function
    model.set_asynchronous_callbacks(True)
    model.predict(ONES, batch_size=1, verbose=0)
    assert model.predict_function is before
    model.set_asynchronous_callbacks(False)
    model.set_infeed_queue_options(prefetch_depth=2)
    model.predict(ONES, batch_size=1, verbose=0)
    assert model.predict_function is not before
