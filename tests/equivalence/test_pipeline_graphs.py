"""Random models, cut at random, run by random schedules on random devices: as in one piece."""

import cases
import keras
import numpy as np
import pipeline_cases as pipes
import pytest
from keras import layers

from case_marks import slow_but_for

GRAPHS = range(12)
SCHEDULES = ("1f1b", "grouped", "gpipe", "sequential", "zero_bubble")
WIDTH = 4
UPDATES = 3


class RandomGraph:
    """Everything about one graph follows from its seed."""

    def __init__(self, seed):
        self.seed = seed
        random = self.random = np.random.default_rng(seed)
        self.num_stages = int(random.integers(2, 5))
        self.num_outputs = int(random.integers(1, 3))
        self.num_calls = int(random.integers(5, 9))
        self.schedule = str(random.choice(SCHEDULES))
        self.mapping = [int(device) for device in random.integers(0, 6, self.num_stages)]
        self.model_seed = int(random.integers(2**31))

    def build(self):
        random = np.random.default_rng(self.model_seed)
        inputs = keras.Input((6,))
        values = [layers.Dense(WIDTH, "tanh")(inputs)]
        for number in range(self.num_calls):
            # One is the newest, so that graphs are deep; the other one may be any, far back.
            newest, other = values[-1], values[random.integers(len(values))]
            # Each kind once before any comes again.
            kind = (number + self.seed) % 6
            if kind == 0:
                made = layers.Dense(WIDTH, "tanh")(newest)
            elif kind == 1:
                made = layers.BatchNormalization(momentum=0.8)(newest)
            elif kind == 2:
                made = layers.Dropout(0.3)(newest)
            elif kind == 3:
                made = newest + other
            elif kind == 4:
                made = layers.Dense(WIDTH)(layers.concatenate([newest, other, inputs]))
            else:
                made = newest * other
            values.append(made)
        heads = [values[-1], values[random.integers(len(values))]][: self.num_outputs]
        outputs = [layers.Dense(1, name=f"head{k}")(head) for k, head in enumerate(heads)]
        return keras.Model(inputs, outputs)

    def data(self, rows):
        x = cases.table(rows)["x"]
        y = [np.sin(x[:, k : k + 1]) for k in range(self.num_outputs)]
        return {"x": x, "y": y if len(y) > 1 else y[0]}

    def compile(self):
        return {
            "optimizer": keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=2.0),
            "loss": ["mse"] * self.num_outputs,
        }

    def stages(self, num_calls):
        """Stages that never go down in execution order, each with some calls."""
        between = self.random.choice(np.arange(1, num_calls), self.num_stages - 1, replace=False)
        return [int(np.sum(between <= number)) for number in range(num_calls)]


def case_of(graph):
    return cases.Case(
        f"graph-{graph.seed}", graph.build, graph.data, rows=2 * UPDATES * cases.BATCH_SIZE,
        compile=graph.compile, fit=lambda data: {"epochs": 1},
    )  # fmt: skip


@pytest.mark.parametrize("seed", slow_but_for(GRAPHS, 3))
def test_random_graphs(seed):
    graph = RandomGraph(seed)
    case = case_of(graph)
    stages = graph.stages(len(cases.compiled(case).operations) - 1)
    model = pipes.pipelined(
        case, stages, pipeline_schedule=graph.schedule, device_mapping=graph.mapping
    )
    found = pipes.fit(case, model)
    assert int(model.optimizer.iterations) == UPDATES
    cases.assert_same(found, pipes.fit(case, pipes.accumulated(case)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 104))
def test_the_order_of_tasks_and_the_devices_change_no_bit(seed):
    graph = RandomGraph(seed)
    case = case_of(graph)
    stages = graph.stages(len(cases.compiled(case).operations) - 1)
    schedule = "gpipe" if graph.schedule == "zero_bubble" else graph.schedule
    other = pipes.pipelined(case, stages, pipeline_schedule=schedule, device_mapping=graph.mapping)
    pipes.assert_bits(pipes.fit(case, other), pipes.fit(case, pipes.pipelined(case, stages)))


@pytest.mark.slow
def test_auto_cuts_two_towers_that_share_statistics_and_random_numbers():
    case = cases.Case("towers", pipes.two_towers, pipes.pairs, compile=cases.optimizer("SGD", 0.1))
    model = pipes.pipelined(case, None, devices=2)
    model.set_pipeline_stage_assignment("auto", num_stages=2)
    calls = pipes.leaf_calls(model.get_pipeline_stage_assignment())
    assert len({call.pipeline_stage for call in calls}) == 2
    found = pipes.fit(case, model)
    cases.assert_same(found, pipes.fit(case, pipes.accumulated(case)))
