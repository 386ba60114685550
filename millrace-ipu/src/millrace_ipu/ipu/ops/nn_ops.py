"""Operations of networks.

gelu(x)            keras.ops.gelu(x, approximate=True)
swish(x)           keras.ops.silu(x)
hard_sigmoid(x)    0.2 x + 0.5 within 0 and 1, as Keras 2 had it; Keras 3's has another slope
multi_conv         the function itself: XLA orders convolutions alone
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras

from millrace_ipu.ipu.replacements import other_name as _other_name


def gelu(x: Any, approximate: bool = True, name: str | None = None) -> Any:
    """Returns the Gaussian error linear unit; `approximate` computes it with tanh."""
    del name
    return keras.ops.gelu(x, approximate=approximate)


def swish(x: Any, name: str | None = None) -> Any:
    """Returns `x * sigmoid(x)`."""
    del name
    return keras.ops.silu(x)


def hard_sigmoid(x: Any, name: str | None = None) -> Any:
    """Returns `0.2 * x + 0.5`, at least 0 and at most 1."""
    del name
    return keras.ops.clip(0.2 * x + 0.5, 0.0, 1.0)


def multi_conv(
    func: Callable[..., Any] | None = None, options: Mapping[str, str] | None = None
) -> Any:
    """Returns the function itself, as a decorator with or without arguments."""
    del options
    return (lambda inner: inner) if func is None else func


def __getattr__(name: str) -> Any:
    return _other_name(__name__, name)
