"""The optimizers of `millrace_ipu.ipu.optimizers`, all of which are Keras optimizers here.

CrossReplicaOptimizer(opt)                        -> ipu.optimizers.CrossReplicaOptimizer
GradientAccumulationOptimizer(opt, n)             -> ipu.optimizers.GradientAccumulationOptimizerV2
CrossReplicaGradientAccumulationOptimizer(opt, n) -> the same with V2
MapGradientOptimizer(opt, function)               -> ipu.optimizers.MapGradientOptimizer
AdamIpuOptimizer, SGDIpuOptimizer                 -> keras.optimizers.Adam, SGD
"""

from typing import Any

import keras as _keras

from millrace_ipu.ipu.optimizers import gradient_accumulation_optimizer as _accumulation
from millrace_ipu.ipu.optimizers.ipu_optimizer import (  # noqa: F401 - names of this module
    CrossReplicaOptimizer,
    IpuOptimizer,
    MapGradientOptimizer,
)
from millrace_ipu.ipu.replacements import other_name as _other_name
from millrace_ipu.tensorflow.no_operation import warn_no_effect as _warn_no_effect

_PLAN = (
    "m_dtype", "v_dtype", "vhat_dtype", "momentum_accum_dtype", "optimizer_compute_precisions",
    "outline_apply_gradients", "outline_apply_gradients_kwargs",
)  # fmt: skip

GradientAccumulationOptimizer = _accumulation.GradientAccumulationOptimizerV2
CrossReplicaGradientAccumulationOptimizer = (
    _accumulation.CrossReplicaGradientAccumulationOptimizerV2
)


def AdamIpuOptimizer(*args: Any, **kwargs: Any) -> _keras.optimizers.Adam:  # noqa: N802
    """Returns `keras.optimizers.Adam`, which takes its arguments but for the IPU's."""
    return _keras.optimizers.Adam(*args, **_without_plan(kwargs))


def SGDIpuOptimizer(*args: Any, **kwargs: Any) -> _keras.optimizers.SGD:  # noqa: N802
    """Returns `keras.optimizers.SGD`, which takes its arguments but for the IPU's."""
    return _keras.optimizers.SGD(*args, **_without_plan(kwargs))


def _without_plan(arguments: dict[str, Any]) -> dict[str, Any]:
    advice = "States have the dtype of their variable, and XLA shares equal code itself."
    for name in set(_PLAN) & set(arguments):
        _warn_no_effect(f"{name} of an optimizer", advice)
    return {name: value for name, value in arguments.items() if name not in _PLAN}


def __getattr__(name: str) -> Any:
    return _other_name(__name__, name)
