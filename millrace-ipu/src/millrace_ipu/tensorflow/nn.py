"""`tf.nn`: a table of `keras.ops`."""

from collections.abc import Sequence
from typing import Any

import keras

from millrace_ipu.tensorflow import math
from millrace_ipu.tensorflow.dispatch import op, real_name
from millrace_ipu.tensorflow.indexing import NN as _INDEXING
from millrace_ipu.tensorflow.norms import NN as _NORMS
from millrace_ipu.tensorflow.random import seed_or_generator
from millrace_ipu.tensorflow.values import ShapeLike, TensorLike, shape_of

ops: Any = keras.ops  # whose annotations allow None for all results

_SAME = "elu gelu leaky_relu log_softmax moments relu relu6 selu sigmoid silu softmax softplus tanh"


def _sparse_cross_entropy(labels: TensorLike, logits: TensorLike) -> Any:
    labels, logits = ops.convert_to_tensor(labels), ops.convert_to_tensor(logits)
    return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def _cross_entropy(labels: TensorLike, logits: TensorLike, axis: int = -1) -> Any:
    labels, logits = ops.convert_to_tensor(labels), ops.convert_to_tensor(logits)
    return keras.losses.categorical_crossentropy(labels, logits, from_logits=True, axis=axis)


def _sigmoid_cross_entropy(labels: TensorLike, logits: TensorLike) -> Any:
    targets: Any = ops.convert_to_tensor(labels)
    scores: Any = ops.convert_to_tensor(logits)
    return ops.relu(scores) - scores * targets + ops.softplus(-ops.abs(scores))


def _l2_loss(t: TensorLike) -> Any:
    return ops.sum(ops.square(t)) / 2


def _spatial(value: int | Sequence[int]) -> int | Sequence[int]:
    """Returns the sizes for the two axes of an image, out of those for all four axes."""
    return tuple(value[1:3]) if isinstance(value, list | tuple) and len(value) == 4 else value


def _conv2d(
    x: TensorLike, filters: TensorLike, strides: int | Sequence[int], padding: str, **_: object
) -> Any:
    return ops.conv(x, filters, strides=_spatial(strides), padding=padding.lower())


def _max_pool2d(
    x: TensorLike,
    ksize: int | Sequence[int],
    strides: int | Sequence[int],
    padding: str,
    **_: object,
) -> Any:
    return ops.max_pool(x, _spatial(ksize), _spatial(strides), padding.lower())


def _avg_pool2d(
    input: TensorLike,
    ksize: int | Sequence[int],
    strides: int | Sequence[int],
    padding: str,
    **_: object,
) -> Any:
    return ops.average_pool(input, _spatial(ksize), _spatial(strides), padding.lower())


def _depthwise(
    input: TensorLike,
    filter: TensorLike,
    strides: int | Sequence[int],
    padding: str,
    **_: object,
) -> Any:
    return ops.depthwise_conv(input, filter, _spatial(strides), padding.lower())


def _dropout(
    x: TensorLike, rate: float, noise_shape: ShapeLike | None = None, seed: int | None = None
) -> Any:
    noise = None if noise_shape is None else shape_of(noise_shape)
    return keras.random.dropout(x, rate, noise, seed_or_generator(seed))


OPS: dict[str, Any] = {
    "avg_pool": op("nn.avg_pool", _avg_pool2d, keeps_names=True),
    "avg_pool2d": op("nn.avg_pool2d", _avg_pool2d, keeps_names=True),
    "depthwise_conv2d": op("nn.depthwise_conv2d", _depthwise, keeps_names=True),
    "in_top_k": math.OPS["in_top_k"],
    "max_pool": op("nn.max_pool", lambda input, *args, **kw: _max_pool2d(input, *args, **kw)),
    "softsign": op("nn.softsign", ops.softsign),
    "top_k": math.OPS["top_k"],
    **{name: op(f"nn.{name}", getattr(ops, name)) for name in _SAME.split()},
    "bias_add": op("nn.bias_add", lambda value, bias: value + bias),
    "conv2d": op("nn.conv2d", _conv2d),
    "dropout": op("nn.dropout", _dropout),
    "l2_loss": op("nn.l2_loss", _l2_loss, keeps_names=True),
    "max_pool2d": op("nn.max_pool2d", _max_pool2d),
    "sigmoid_cross_entropy_with_logits": op(
        "nn.sigmoid_cross_entropy_with_logits", _sigmoid_cross_entropy, keeps_names=True
    ),
    "softmax_cross_entropy_with_logits": op(
        "nn.softmax_cross_entropy_with_logits", _cross_entropy, keeps_names=True
    ),
    "sparse_softmax_cross_entropy_with_logits": op(
        "nn.sparse_softmax_cross_entropy_with_logits", _sparse_cross_entropy, keeps_names=True
    ),
    "swish": op("nn.silu", ops.silu),
    **_INDEXING,
    **_NORMS,
}
globals().update(OPS)


def __getattr__(name: str) -> Any:
    return real_name(f"nn.{name}")
