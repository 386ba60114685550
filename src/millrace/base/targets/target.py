"""The devices of a target: described by data, compiled for, and not present.

"h100:8"     eight of targets/h100.toml            GPUs: a number
"v5e:2x4"    the slice of that shape, of v5e.toml  TPUs: a shape, or a number for the usual one
"""

import functools
import math
import os
import pathlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from millrace._compat.jax_targets import (
    CompilerMissingError,
    described_gpus,
    described_tpus,
    is_described,
)
from millrace.errors import DeviceError, OptionError

_FOLDER = pathlib.Path(__file__).parent
_SHAPES = {1: "1x1", 2: "1x2", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16"}
_CUBES = {
    1: "1x1x1",
    2: "1x2x1",
    4: "2x2x1",
    8: "2x2x2",
    16: "2x2x4",
    32: "2x4x4",
    64: "4x4x4",
    128: "4x4x8",
}
# Of a GPU's memory, what JAX takes unless the environment says otherwise.
_FRACTION, _FRACTION_VARIABLE = 0.75, "XLA_PYTHON_CLIENT_MEM_FRACTION"


@dataclass(frozen=True, slots=True, eq=False)  # there is one of each
class TargetKind:
    """A kind of device, as its file describes it."""

    name: str
    description: str  # its driver's name
    platform: str  # "gpu" or "tpu"
    memory: int  # bytes of its memory
    on_chip: int  # bytes of the last cache, or of the scratch memory of a TPU
    devices_per_host: int
    rates: Mapping[str, float]  # bytes in a second: memory_bytes, link_bytes, host_bytes
    flops: Mapping[str, float]  # in a second, by dtype of the computation
    compiler: Mapping[str, Any]  # of a GPU: XLA's `GpuDeviceInfoProto`
    sources: Mapping[str, str]  # what was taken from each address

    @property
    def usable(self) -> int:
        """Bytes that a program of JAX may use, as `bytes_limit` would say on the device."""
        if self.platform != "gpu":
            return self.memory
        given = os.environ.get(_FRACTION_VARIABLE, "")
        share = float(given) if re.fullmatch(r"0?\.\d+|1(\.0*)?", given) else _FRACTION
        return int(self.memory * share)

    def flops_of(self, dtype: str) -> float:
        """Returns the most FLOPs in a second of a computation in `dtype`."""
        return self.flops.get(dtype) or self.flops["float32"]


def kinds() -> list[str]:
    """Returns the names of all kinds of devices."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


@functools.cache
def kind_of_name(name: str) -> TargetKind:
    """Returns a kind of device by its name."""
    data = tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    rates = dict(data["rates"])
    flops = rates.pop("flops")
    return TargetKind(
        name=name,
        description=data["description"],
        platform=data["platform"],
        memory=data["memory"],
        on_chip=data["on_chip"],
        devices_per_host=data["devices_per_host"],
        rates=rates,
        flops=flops,
        compiler=data.get("compiler", {}),
        sources=data["sources"],
    )


def find_target(target: object) -> tuple[jax.Device, ...]:
    """Returns the devices of a target.

    Args:
        target: a kind of device and a number of them, such as `"h100:8"`, or the shape of a slice
            of TPUs, such as `"v5e:2x4"`; one device without either.

    Raises:
        OptionError: if there is no such kind or shape.
        DeviceError: without the compiler of its platform.
    """
    known = f"one of {', '.join(kinds())}, and a number of devices, such as 'h100:8'"
    match = re.fullmatch(r"([\w-]+)(?::(\d+|\d+x\d+(?:x\d+)?))?", str(target).lower())
    if not isinstance(target, str) or match is None or match[1] not in kinds():
        raise OptionError(f"target is {known} or 'v5e:2x4'. Received: target={target!r}.")
    kind, extent = kind_of_name(match[1]), match[2] or "1"
    try:
        devices = _gpus(kind, extent) if kind.platform == "gpu" else _tpus(kind, extent)
    except CompilerMissingError:
        raise DeviceError(
            f"target={target!r} needs XLA's compiler for {kind.platform.upper()}s, which is not "
            f"installed. Run: python -m pip install 'millrace[{kind.platform}-compiler]'"
        ) from None
    _kinds.update(dict.fromkeys(devices, kind))
    return devices


_kinds: dict[jax.Device, TargetKind] = {}


def target_of(device: jax.Device) -> TargetKind | None:
    """Returns the kind of a device that is described; None for one that is present."""
    return _kinds.get(device) if is_described(device) else None


def _gpus(kind: TargetKind, extent: str) -> tuple[jax.Device, ...]:
    if not extent.isdecimal() or int(extent) < 1:
        raise OptionError(
            f"target={kind.name}:{extent} has a shape, and {kind.name} is counted. Set it to "
            f"'{kind.name}:8', say."
        )
    number, most = int(extent), kind.devices_per_host
    hosts = -(-number // most)
    if hosts > 1 and number % most:
        raise OptionError(
            f"target='{kind.name}:{number}' is not a whole number of hosts with {most} devices "
            f"each. Set it to '{kind.name}:{number - number % most}' or "
            f"'{kind.name}:{number - number % most + most}'."
        )
    config = (
        f'gpu_device_info {{ {_proto(kind.compiler)} }} platform_name: "CUDA" '
        f'dnn_version_info {{ major: 9 minor: 10 }} device_description_str: "{kind.description}"'
    )
    return described_gpus(kind.name, config, hosts, min(number, most))


def _proto(fields: Mapping[str, Any]) -> str:
    """Returns fields as the text of a protobuf message."""
    return " ".join(
        f"{name} {{ {_proto(value)} }}" if isinstance(value, dict) else f"{name}: {value}"
        for name, value in fields.items()
    )


def _tpus(kind: TargetKind, extent: str) -> tuple[jax.Device, ...]:
    shapes = _CUBES if kind.name == "v5p" else _SHAPES
    shape = shapes.get(int(extent), extent) if extent.isdecimal() else extent
    lengths = (*map(int, shape.split("x")), 1, 1)[:3]
    is_one_host = math.prod(lengths) <= kind.devices_per_host
    try:
        return described_tpus(f"{kind.name}:{shape}", lengths if is_one_host else None)
    except ValueError as error:
        usual = ", ".join(f"'{kind.name}:{each}'" for each in shapes.values())
        raise OptionError(
            f"There is no slice '{kind.name}:{extent}': {error}. Usual ones are {usual}."
        ) from error
