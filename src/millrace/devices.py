"""Which devices a strategy runs on."""

import contextlib
import re
from collections.abc import Sequence

import jax

from millrace._compat.jax import backends_are_initialized
from millrace.errors import DeviceError, OptionError


def find_devices(devices: object) -> tuple[jax.Device, ...]:
    """Turns what the user wrote into JAX devices.

    Args:
        devices: None for all of the default platform, a number for its first ones, a platform and
            a number such as `"cpu:8"` or `"gpu:2"`, or a sequence of JAX devices. Virtual CPU
            devices are made on the way, which needs a JAX that has not started yet.

    Raises:
        OptionError: if `devices` is none of these.
        DeviceError: if there are fewer devices, or JAX started before they could be made.
    """
    if devices is None:
        return tuple(jax.devices())
    if isinstance(devices, int) and not isinstance(devices, bool):
        return _first(devices, None)
    if isinstance(devices, str):
        match = re.fullmatch(r"(cpu|gpu|tpu|cuda|rocm)(?::(\d+))?", devices.lower())
        if not match:
            raise OptionError(
                "devices, given as text, is a platform and a number of devices, such as 'cpu:8' "
                f"or 'gpu:2'. Received: devices={devices!r}."
            )
        platform, number = match[1], match[2]
        if number and platform == "cpu":
            _make_virtual(int(number))
        return _first(int(number), platform) if number else tuple(_devices_of(platform))
    if isinstance(devices, Sequence) and devices and all(map(_is_device, devices)):
        if len(set(devices)) < len(devices):
            raise OptionError(f"devices names a device twice. Received: devices={devices!r}.")
        return tuple(devices)
    raise OptionError(
        "devices must be None, a number, text such as 'cpu:8', or a sequence of JAX devices. "
        f"Received: devices={devices!r}."
    )


def _is_device(device: object) -> bool:
    return isinstance(device, jax.Device)


def _devices_of(platform: str | None) -> Sequence[jax.Device]:
    try:
        return jax.devices(platform)
    except RuntimeError as error:
        present = sorted({device.platform for device in jax.devices()})
        raise DeviceError(
            f"There is no {platform} here: JAX has {', '.join(present)}. Set devices to one of "
            "these, or install the JAX plugin for the other."
        ) from error


def _first(number: int, platform: str | None) -> tuple[jax.Device, ...]:
    if number < 1:
        raise OptionError(f"devices must be at least 1. Received: {number}.")
    present = _devices_of(platform)
    if number > len(present):
        name = present[0].platform
        hint = (
            f" Set devices='cpu:{number}' to train on {number} virtual CPU devices."
            if name == "cpu"
            else f" Set devices={len(present)} or fewer."
        )
        raise DeviceError(
            f"Asked for {number} devices of {platform or 'the default platform'}, JAX has "
            f"{len(present)} ({name}).{hint}"
        )
    return tuple(present[:number])


def _make_virtual(number: int) -> None:
    if not backends_are_initialized():
        # XLA_FLAGS may have set a number already; below we see whether it is enough.
        with contextlib.suppress(RuntimeError, ValueError):
            # Whoever asked for more before, another strategy say, gets them.
            asked = getattr(jax.config, "jax_num_cpu_devices", 0)
            jax.config.update("jax_num_cpu_devices", max(number, asked, 1))
    present = len(_devices_of("cpu"))
    if present < number:
        raise DeviceError(
            f"devices='cpu:{number}' needs {number} CPU devices, and JAX had already started with "
            f"{present}. Their number is fixed by the first use of JAX: move the line\n"
            f"    strategy = millrace.Strategy(devices='cpu:{number}')\n"
            "above everything that builds a model or an array."
        )
