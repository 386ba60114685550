"""The specs of pipelined estimators, which are data; the estimators are not here."""

from collections.abc import Callable, Sequence
from typing import Any

from millrace_ipu.ipu.replacements import other_name as _other_name


class IPUPipelineEstimatorSpec:
    """Keeps its arguments, as attributes; those that it does not know in `pipeline_op_kwargs`."""

    def __init__(
        self,
        mode: str,
        computational_stages: Sequence[Callable[..., object]],
        gradient_accumulation_count: int | None = None,
        eval_metrics_fn: Callable[..., object] | None = None,
        optimizer_function: Callable[..., object] | None = None,
        device_mapping: Sequence[int] | None = None,
        **pipeline_op_kwargs: Any,
    ):
        self.mode, self.computational_stages = mode, computational_stages
        self.gradient_accumulation_count = gradient_accumulation_count
        self.eval_metrics_fn, self.optimizer_function = eval_metrics_fn, optimizer_function
        self.device_mapping, self.pipeline_op_kwargs = device_mapping, pipeline_op_kwargs


def __getattr__(name: str) -> Any:
    return _other_name(__name__, name)
