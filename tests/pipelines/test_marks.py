import threading

import jax
import keras
import numpy as np
import pytest

from millrace._compat.patches import unpatched
from millrace.errors import OptionError, PlanError
from millrace.run.pipelines.assignment.marks import PipelineStage, current_stage, stages_allowed

pytestmark = pytest.mark.quick


def test_the_stage_holds_inside_and_ends_with_the_block():
    with stages_allowed():
        assert current_stage() is None
        with PipelineStage(2) as scope:
            assert current_stage() == 2
        assert scope.stage == 2
        assert current_stage() is None


def test_the_stage_ends_when_the_block_fails():
    with stages_allowed():
        with pytest.raises(KeyError), PipelineStage(2):
            raise KeyError
        with PipelineStage(0):
            assert current_stage() == 0


@pytest.mark.parametrize("stage", [-1, 1.0, "0", None, True])
def test_a_stage_is_a_whole_number_from_0_on(stage):
    with pytest.raises(OptionError, match=r"whole number from 0 on.*Set 0 for the first"):
        PipelineStage(stage)


def test_stages_do_not_nest():
    with (
        stages_allowed(),
        PipelineStage(0),
        pytest.raises(PlanError, match=r"PipelineStage\(1\) .* inside PipelineStage\(0\).*Leave"),
        PipelineStage(1),
    ):
        pass


def test_a_stage_outside_of_a_scope_is_refused():
    with (
        pytest.raises(PlanError, match=r"outside of a strategy's scope.*Move it into"),
        PipelineStage(0),
    ):
        pass
    with stages_allowed():
        pass
    with pytest.raises(PlanError), PipelineStage(0):
        pass


def test_the_scope_of_one_thread_is_not_that_of_another():
    errors = []

    def enter():
        try:
            with PipelineStage(0):
                pass
        except PlanError as error:
            errors.append(error)

    with stages_allowed():
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
    assert len(errors) == 1


class Staged(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        with PipelineStage(3):
            return self.dense(x)


def test_stages_in_call_become_name_scopes_however_the_model_is_called():
    model = Staged()
    ones = np.ones((2, 4), "float32")
    model(ones)
    weights = [v.value for v in model.trainable_variables]
    for forward in (model, lambda x: model.stateless_call(weights, [], x)):
        jaxpr = jax.make_jaxpr(forward)(ones)
        assert all("mr.S3" in str(eqn.source_info.name_stack) for eqn in jaxpr.eqns)


def test_stages_in_call_work_in_fit_outside_of_a_scope():
    model = Staged()
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 4)), np.ones((4, 2)), verbose=0)


def test_recording_again_does_not_stack_the_hooks():
    with stages_allowed():
        first = keras.Layer.__init__, keras.Operation.__init__
    with stages_allowed():
        assert (keras.Layer.__init__, keras.Operation.__init__) == first
    stock = unpatched(first[1])
    assert stock is not first[1]
    assert unpatched(stock) is stock


def test_operations_without_a_constructor_of_their_own_are_made_as_before():
    with stages_allowed():
        x = keras.Input((4,))
        with PipelineStage(0):
            model = keras.Model(x, keras.ops.relu(x + 1))
    copy = keras.models.clone_model(model)
    assert [type(x).__name__ for x in copy.operations] == ["InputLayer", "Add", "Relu"]
