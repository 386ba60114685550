"""One file of an export: its content, its key, and the environment that it needs.

    header      JSON: kind, key, environment, devices, ...
    content     pickled

Headers are read when a directory is loaded, contents when a program is needed. A file is read in
full and compared with its checksum before its content is used: XLA can crash on a damaged
executable.
"""

import base64
import functools
import hashlib
import json
import pathlib
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from millrace._compat.jax_targets import is_described
from millrace.base.records.compilation import ProgramKey
from millrace.compilation.cache.entry import DamagedEntryError, Format, fields_of
from millrace.compilation.cache.files import environment as of_cache
from millrace.compilation.cache.keys import pack_key, unpack_key
from millrace.compilation.cache.private import open_private
from millrace.compilation.explain.key import versions

_PLATFORM_VERSION = "version of the platform"


def environment(device: jax.Device) -> dict[str, str]:
    """Returns the facts that must be equal where executables are made and used, by name.

    Args:
        device: any of the devices of the executables.
    """
    facts = {
        **versions(),
        "code of millrace": _code(),
        "platform": device.platform,
        "kind of device": device.device_kind,
    }
    if device.platform == "cpu":
        facts["processor"] = of_cache()
    if device.platform != "gpu" or not is_described(device):  # which has no driver
        facts[_PLATFORM_VERSION] = str(device.client.platform_version)
    return facts


def differences(there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Returns the differences of two environments, such as "jax 0.10.2 -> 0.12.0"."""
    names = [name for name in {**here, **there} if there.get(name) != here.get(name)]
    if _PLATFORM_VERSION not in there:  # exported for a target: XLA itself compares, as it reads
        names = [name for name in names if name != _PLATFORM_VERSION]
    return [f"{name} {there.get(name)} -> {here.get(name)}" for name in names]


@functools.cache
def _code() -> str:
    """Returns a hash of millrace's own code, which changes between releases without a new version.

    250 files take 15 ms.
    """
    root = pathlib.Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


SUFFIX = ".mrexport"
EXECUTABLE, STAGES = "executable", "stages"  # kinds

_FORMAT = Format("an export", b"MILLRACE-EXPORT-1\n", longest_header=1 << 24)


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a file."""

    kind: str
    key: ProgramKey
    environment: Mapping[str, str]  # versions, processor, platform: by name
    layers: tuple[str, ...] = ()  # of its model, in order
    unroll: int | None = None  # the loop form of the plan's programs


def pack(header: Header, content: object) -> bytes:
    """Returns the bytes of a file.

    Raises:
        Exception: of many classes, if the content cannot be pickled.
    """
    fields = {
        "kind": header.kind,
        "key": base64.b64encode(pack_key(header.key)).decode(),
        "environment": dict(header.environment),
        "layers": header.layers,
        "unroll": header.unroll,
    }
    return _FORMAT.pack(json.dumps(fields).encode(), pickle.dumps(content))


def read_header(path: pathlib.Path) -> Header:
    """Returns the header of a file, without reading its content.

    Raises:
        OSError: if it cannot be read.
        DamagedEntryError: if it is not what `pack` returned.
        NotPrivateError: if other users can write it.
    """
    with open(open_private(path), "rb") as file:
        return _header(_FORMAT.read_header(file))


def unpack(data: bytes, header: Header) -> Any:
    """Returns the content of a file's bytes; this can run any code that its writer chose.

    Args:
        data: the bytes.
        header: of the file when its directory was loaded.

    Raises:
        DamagedEntryError: if the bytes are not what `pack` returned for this header.
        Exception: of many classes, if this process cannot unpickle it.
    """
    _FORMAT.check(data)
    if _header(_FORMAT.header(data)) != header:
        raise DamagedEntryError("it was replaced by another one")
    return pickle.loads(_FORMAT.content(data))


def _header(content: bytes) -> Header:
    try:
        fields = fields_of(content)
        if fields["kind"] not in (EXECUTABLE, STAGES):
            raise ValueError("an unknown kind")
        return Header(
            kind=fields["kind"],
            key=unpack_key(base64.b64decode(fields["key"])),
            environment={str(k): str(v) for k, v in fields["environment"].items()},
            layers=tuple(map(str, fields["layers"])),
            unroll=None if fields["unroll"] is None else int(fields["unroll"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise DamagedEntryError("its header is damaged") from error
