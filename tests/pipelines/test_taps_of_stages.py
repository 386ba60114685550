"""Where what an update carries out is computed."""

from types import SimpleNamespace

import pytest
import stages
from keras.optimizers import Adam

from millrace.base.options import Accumulation, TapRequest
from millrace.run.pipelines.programs.stage_taps import bundle_of
from millrace.run.pipelines.programs.stage_update import contributions, split_stage_update

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("stops", [True, False])
def test_statistics_are_computed_where_their_gradient_is(norms, stops):
    """What crosses over between stages are numbers, also where one decides for all."""
    model = stages.compiled(stages.mlp(width=80), optimizer=Adam(global_clipnorm=1.0))
    split = stages.cut(model, [0, 0, 1, 1, 2])
    state = stages.specs(stages.state_of(model))
    taps = TapRequest(gradients=("*",), norms=norms, stops=stops)
    plan = SimpleNamespace(accumulation=Accumulation(), taps=taps)
    update = split_stage_update(model, plan, split, state)
    made = contributions(split)
    for stage, part in update.final.items():
        taken = {made[slot.index][0] for slot in part.inputs if slot.role == "gradient"}
        assert taken == {stage}
        bundle = bundle_of(update.taps, part.taps, stage)
        names = [(tensor.stage, tensor.name) for tensor in bundle.rows.tensors]
        weights = [model.trainable_variables[i] for i in split.stages[stage].trainable]
        assert names == [(stage, weight.path.split("/", 1)[1]) for weight in weights]
    for part in update.partial.values():
        assert all(var.aval.shape == () for var in part.graph.outvars)
