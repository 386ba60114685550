"""What a program depends on besides itself: devices, options of JAX and Keras, flags, versions."""

import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import keras
import numpy as np

from millrace._compat.jax_tracing import jax_options
from millrace.explain.library import version_of
from millrace.records.compilation import Aspect, KeyField

Pairs = Iterable[tuple[str, object]] | Mapping[str, object]

_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


def fields_from(aspect: Aspect, pairs: Pairs) -> Iterator[KeyField]:
    """Makes fields of names and values."""
    for name, value in dict(pairs).items():
        yield KeyField(aspect, name, str(value))


def surroundings(
    devices: Iterable[Any], compiler_options: Mapping[str, Any] | None
) -> Iterator[KeyField]:
    """Returns what is the same for all programs of a process, most of the time."""
    yield from fields_from(Aspect.OPTION, _keras_options())
    yield from fields_from(Aspect.DEVICE, _device_facts(list(devices)))
    yield from fields_from(Aspect.JAX, jax_options())
    for name in _FLAGS:
        yield KeyField(Aspect.FLAG, name, " ".join(sorted(os.environ.get(name, "").split())))
    given = sorted((compiler_options or {}).items())
    yield KeyField(Aspect.FLAG, "compiler options", " ".join(f"{k}={v}" for k, v in given))
    yield from fields_from(Aspect.VERSION, versions())


def versions() -> dict[str, str]:
    """Returns the versions of everything that has a part in tracing and compiling."""
    return {
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": str(version_of("jaxlib")),
        "keras": keras.__version__,
        "numpy": np.__version__,
        # Not imported: what imports everything is above everything.
        "millrace": str(getattr(sys.modules["millrace"], "__version__", "unknown")),
    }


def _keras_options() -> Iterator[tuple[str, object]]:
    config = keras.config
    yield "keras.config.floatx()", config.floatx()
    yield "keras.config.epsilon()", config.epsilon()
    yield "keras.config.image_data_format()", config.image_data_format()
    yield "keras.config.is_flash_attention_enabled()", config.is_flash_attention_enabled()


def _device_facts(devices: list[Any]) -> Iterator[tuple[str, object]]:
    if devices:
        yield "platform", devices[0].platform
        yield "kind of device", devices[0].device_kind
        yield "number of devices", len(devices)
        yield "devices", ", ".join(str(device.id) for device in devices)
