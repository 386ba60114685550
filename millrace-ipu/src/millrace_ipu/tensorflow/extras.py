"""Further names of `tf`, which larger programs use.

tf.experimental.numpy        jax.numpy, which splits arrays on the host
tf.io.gfile                  Python's own files
tf.train.latest_checkpoint   the newest file of weights in a directory
tf.constant_initializer      initializers of Keras
"""

import glob as _glob
import os
import pathlib
import shutil
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import keras

from millrace_ipu.tensorflow import optimizers_v1
from millrace_ipu.tensorflow.arrays import split_by
from millrace_ipu.tensorflow.dispatch import real_name
from millrace_ipu.tensorflow.dtypes import DType, as_dtype

_WEIGHTS = (".weights.h5", ".keras", ".h5")


def latest_checkpoint(checkpoint_dir: str | os.PathLike[str]) -> str | None:
    """Returns the newest file of weights, or of a model, in a directory; None without one."""
    files = [path for end in _WEIGHTS for path in pathlib.Path(checkpoint_dir).glob(f"*{end}")]
    return str(max(files, key=lambda path: path.stat().st_mtime_ns)) if files else None


class _Package:
    """Names of a package of TensorFlow; all others are those of the real one."""

    def __init__(self, path: str, **names: Any):
        self._path = path
        vars(self).update(names)

    def __getattr__(self, name: str) -> Any:
        return real_name(f"{self._path}.{name}")


gfile = _Package(
    "io.gfile",
    GFile=open,
    exists=os.path.exists,
    glob=lambda pattern: sorted(_glob.glob(os.fspath(pattern))),
    isdir=os.path.isdir,
    join=os.path.join,
    listdir=os.listdir,
    makedirs=lambda path: os.makedirs(path, exist_ok=True),
    remove=os.remove,
    rmtree=shutil.rmtree,
)
io = _Package("io", gfile=gfile)
train = _Package("train", latest_checkpoint=latest_checkpoint)
v1_train = _Package(
    "compat.v1.train", latest_checkpoint=latest_checkpoint, **optimizers_v1.OPTIMIZERS
)


def without_dtype(kind: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an initializer of TensorFlow 1, which also takes the dtype of its variables."""

    def make(*args: object, dtype: object = None, **kwargs: object) -> Any:
        return kind(*args, **kwargs)

    make.__name__ = make.__qualname__ = kind.__name__
    return make


INITIALIZERS = {
    "constant_initializer": keras.initializers.Constant,
    "ones_initializer": keras.initializers.Ones,
    "random_normal_initializer": keras.initializers.RandomNormal,
    "random_uniform_initializer": keras.initializers.RandomUniform,
    "zeros_initializer": keras.initializers.Zeros,
}
V1_INITIALIZERS = {
    name: without_dtype(kind)
    for name, kind in {
        **INITIALIZERS,
        "glorot_normal_initializer": keras.initializers.GlorotNormal,
        "glorot_uniform_initializer": keras.initializers.GlorotUniform,
        "orthogonal_initializer": keras.initializers.Orthogonal,
        "truncated_normal_initializer": keras.initializers.TruncatedNormal,
    }.items()
}
numpy = SimpleNamespace(
    **{
        **vars(jnp),
        **{
            name: split_by(name, getattr(jnp, name))
            for name in ("array_split", "dsplit", "hsplit", "split", "vsplit")
        },
    }
)
experimental = _Package("experimental", numpy=numpy)
NAMES: dict[str, Any] = {
    **INITIALIZERS,
    "DType": DType,
    "as_dtype": as_dtype,
    "experimental": experimental,
}
