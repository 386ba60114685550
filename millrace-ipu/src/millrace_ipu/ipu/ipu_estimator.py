"""The specs of estimators, which are data; the estimators are not here."""

from collections import namedtuple
from typing import Any

from millrace_ipu.ipu.replacements import other_name as _other_name

IPUEstimatorSpec = namedtuple(  # any values
    "IPUEstimatorSpec",
    "mode predictions loss train_op eval_metric_ops eval_metrics host_call training_hooks "
    "evaluation_hooks prediction_hooks",
    defaults=(None,) * 9,
)


def __getattr__(name: str) -> Any:
    return _other_name(__name__, name)
