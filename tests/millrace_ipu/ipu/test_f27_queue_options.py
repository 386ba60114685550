import numpy as np
import pytest
from linear_models import linear, rows

from millrace_ipu.ipu.ipu_strategy import IPUStrategy
from millrace_ipu.tensorflow.no_operation import notes


def trained(infeed=None, outfeed=None):
    model = linear(IPUStrategy(), 4)
    if infeed is not None:
        model.set_infeed_queue_options(**infeed)
    if outfeed is not None:
        model.set_outfeed_queue_options(**outfeed)
    np.random.seed(0)
    model.fit(*rows(16), batch_size=2, shuffle=False, verbose=0)
    return model


def test_f27_depths_leave_results_unchanged(caplog):
    notes.clear()
    plain = trained()
    deep = trained({"prefetch_depth": 2}, {"buffer_depth": 2})
    np.testing.assert_array_equal(plain.get_weights()[0], deep.get_weights()[0])
    assert deep._millrace.setup.options.feed.prefetch_depth == 2
    assert caplog.text.count("buffer_depth has no effect. Results wait on the host") == 1


@pytest.mark.parametrize(
    ("setter", "key", "message"),
    [
        ("set_infeed_queue_options", "dataset", "does not take dataset: it is set automatically"),
        ("set_infeed_queue_options", "infeed_spec", "set automatically, from the model and from"),
        ("set_infeed_queue_options", "element_spec", "set automatically"),
        ("set_outfeed_queue_options", "outfeed_mode", "not compatible with Keras. Remove it"),
        ("set_outfeed_queue_options", "device_ordinal", "not compatible with Keras"),
    ],
)
def test_f27_keys_that_are_refused_at_the_call(setter, key, message):
    model = linear(IPUStrategy())
    with pytest.raises(ValueError, match=message):
        getattr(model, setter)(**{key: 1})


@pytest.mark.parametrize(
    ("infeed", "outfeed", "message"),
    [
        ({"prefetch_depth": 0}, None, "prefetch_depth must be at least 1. Received: 0"),
        ({"prefetch_depth": 256}, None, "at most 255. Received: 256. Set prefetch_depth=255"),
        ({"prefetch": 2}, None, "no option 'prefetch'. Did you mean prefetch_depth"),
        (None, {"buffer_depth": 0}, "buffer_depth must be at least 1. Received: 0"),
        (None, {"buffer_depths": 2}, "Did you mean buffer_depth"),
    ],
)
def test_f27_values_are_refused_when_fit_builds_the_queue(infeed, outfeed, message):
    with pytest.raises(ValueError, match=message):
        trained(infeed, outfeed)


def test_f27_each_call_replaces_the_one_before():
    model = trained({"prefetch_depth": 3})
    model.set_infeed_queue_options()
    assert model._millrace.setup.options.feed.prefetch_depth == 2  # the default
    model.set_infeed_queue_options(prefetch_depth=300)
    model.set_infeed_queue_options(prefetch_depth=4)
    model.fit(*rows(8), batch_size=2, verbose=0)
