import keras
import numpy as np
import pytest
from linear_models import linear

from millrace_ipu.ipu.ipu_strategy import IPUStrategy
from millrace_ipu.ipu.keras.extensions import ReplicatedMetricReductionMethod as Method

# A batch of each of two replicas, whose mean is what the metric reports.
X = np.array([[1.0], [2.0], [5.0], [6.0]], "float32")
OF_REPLICAS = [1.5 * 0.5, 5.5 * 0.5]  # the weight is 0.5


def mean_output(y_true, y_pred):
    return keras.ops.mean(y_pred)


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        (None, OF_REPLICAS[1]),
        ("NONE", OF_REPLICAS[1]),
        (Method.LIST, OF_REPLICAS),
        ("sum", sum(OF_REPLICAS)),
        (Method.MEAN, sum(OF_REPLICAS) / 2),
    ],
)
def test_f24_what_is_reported_of_two_replicas(method, wanted, system):
    system(2)
    model = linear(IPUStrategy(), 2, metrics=[mean_output])
    if method is not None:
        model.set_replication_options(method)
    actual = model.evaluate(X, X, batch_size=2, verbose=0, return_dict=True)
    np.testing.assert_allclose(actual["mean_output"], wanted, rtol=1e-6)


def test_f24_a_single_batch_reports_the_replica_that_took_it(system):
    system(2)
    model = linear(IPUStrategy(), 2, metrics=[mean_output])
    x = X[:2]
    for method in (model.test_on_batch, model.train_on_batch):
        actual = method(x, x, return_dict=True)
        np.testing.assert_allclose(actual["mean_output"], OF_REPLICAS[0], rtol=1e-6)
        assert actual["loss"] > 0


def test_f24_an_unknown_method_lists_the_names():
    with pytest.raises(ValueError, match=r"\['NONE', 'LIST', 'SUM', 'MEAN'\]. Received: 'most'"):
        linear(IPUStrategy()).set_replication_options("most")
    assert [method.value for method in Method] == [1, 2, 3, 4]
