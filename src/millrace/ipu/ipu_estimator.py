"""Estimators raise the port of their arguments to `model.fit`; their specs are data.

IPUEstimator(model_fn, config=RunConfig(...), params=...)     UnsupportedNameError, with the lines
IPUEstimatorSpec(mode, loss=..., train_op=...)                keeps its arguments
"""

from collections import namedtuple
from typing import Any

from millrace.ipu.replacements import IPU as _IPU
from millrace.ipu.replacements import other_name as _other_name
from millrace.tensorflow.estimator import EstimatorBase as _EstimatorBase

IPUEstimatorSpec = namedtuple(  # any values
    "IPUEstimatorSpec",
    "mode predictions loss train_op eval_metric_ops eval_metrics host_call training_hooks "
    "evaluation_hooks prediction_hooks",
    defaults=(None,) * 9,
)


class IPUEstimator(_EstimatorBase):
    """Raises the port of its arguments."""

    _shown = "ipu.ipu_estimator.IPUEstimator"
    _instead = _IPU["ipu.ipu_estimator"]


class IPUEstimatorV1(IPUEstimator):
    """Is another name of `IPUEstimator`."""

    _shown = "ipu.ipu_estimator.IPUEstimatorV1"


class IPUEstimatorV2(IPUEstimator):
    """Is another name of `IPUEstimator`."""

    _shown = "ipu.ipu_estimator.IPUEstimatorV2"


def __getattr__(name: str) -> Any:
    return _other_name(__name__, name)
