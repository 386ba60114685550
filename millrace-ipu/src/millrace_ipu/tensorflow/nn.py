"""`tf.nn`: a table of `keras.ops`."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from millrace_ipu.tensorflow import math
from millrace_ipu.tensorflow.dispatch import operations, real_name
from millrace_ipu.tensorflow.random import seed_or_generator
from millrace_ipu.tensorflow.values import ShapeLike, TensorLike, shape_of

ops: Any = keras.ops  # whose annotations allow None for all results

_SAME = (
    "elu gelu leaky_relu log_softmax moments relu relu6 selu sigmoid silu softmax softplus "
    "softsign tanh"
)


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


def _spatial(value: int | Sequence[int]) -> int | Sequence[int]:
    """Returns the sizes for the two axes of an image, out of those for all four axes."""
    return tuple(value[1:3]) if isinstance(value, list | tuple) and len(value) == 4 else value


def _conv2d(
    x: TensorLike, filters: TensorLike, strides: int | Sequence[int], padding: str, **_: object
) -> Any:
    return ops.conv(x, filters, strides=_spatial(strides), padding=padding.lower())


def _pooled(pool: Callable[..., Any]) -> Callable[..., Any]:
    def pool2d(
        input: TensorLike,
        ksize: int | Sequence[int],
        strides: int | Sequence[int],
        padding: str,
        **_: object,
    ) -> Any:
        return pool(input, _spatial(ksize), _spatial(strides), padding.lower())

    return pool2d


def _dropout(
    x: TensorLike, rate: float, noise_shape: ShapeLike | None = None, seed: int | None = None
) -> Any:
    noise = None if noise_shape is None else shape_of(noise_shape)
    return keras.random.dropout(x, rate, noise, seed_or_generator(seed))


OPS: dict[str, Any] = {
    **operations(
        "nn",
        {
            **{name: getattr(ops, name) for name in _SAME.split()},
            "avg_pool": _pooled(ops.average_pool),
            "avg_pool2d": _pooled(ops.average_pool),
            "bias_add": lambda value, bias: value + bias,
            "conv2d": _conv2d,
            "dropout": _dropout,
            "embedding_lookup": lambda params, ids: ops.take(params, ids, axis=0),
            "l2_loss": lambda t: ops.sum(ops.square(t)) / 2,
            "max_pool": _pooled(ops.max_pool),
            "max_pool2d": _pooled(ops.max_pool),
            "sigmoid_cross_entropy_with_logits": _sigmoid_cross_entropy,
            "softmax_cross_entropy_with_logits": _cross_entropy,
            "sparse_softmax_cross_entropy_with_logits": _sparse_cross_entropy,
            "swish": ops.silu,
        },
    ),
    **{name: math.OPS[name] for name in ("in_top_k", "l2_normalize", "top_k")},
}
globals().update(OPS)


def __getattr__(name: str) -> Any:
    return real_name(f"nn.{name}")
