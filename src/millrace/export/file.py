r"""One file of an export: what it holds, what it was made for, and what it depends on.

    MILLRACE-EXPORT-1\n          18 bytes; the number changes with this format
    length of the header          4 bytes, big-endian
    header                        JSON: kind, key, environment, devices, ...
    SHA-256                      32 bytes, of the header and the content
    content                       pickled

Headers are read when a directory is loaded, contents when a program is wanted. A file is read in
full and compared with its checksum before anything of its content is believed: XLA can crash on a
damaged executable. The checksum finds damage; it proves nothing of who wrote the file.
"""

import base64
import functools
import hashlib
import json
import pathlib
import pickle
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from millrace.cache.entry import DamagedEntryError
from millrace.cache.files import environment as of_cache
from millrace.cache.keys import pack_key, unpack_key
from millrace.explain.key import versions
from millrace.records.compilation import ProgramKey


def environment(device: jax.Device) -> dict[str, str]:
    """Returns what must be equal where executables are made and where they are used, by name.

    Args:
        device: one of those that they are for.
    """
    return {
        **versions(),
        "code of millrace": _code(),
        "processor": of_cache(),
        "platform": device.platform,
        "version of the platform": str(device.client.platform_version),
        "kind of device": device.device_kind,
    }


def differences(there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Returns what differs between two environments, such as "jax 0.10.2 -> 0.12.0"."""
    names = [name for name in {**here, **there} if there.get(name) != here.get(name)]
    return [f"{name} {there.get(name)} -> {here.get(name)}" for name in names]


@functools.cache
def _code() -> str:
    """Returns a hash of millrace's own code, which a version does not tell while it is developed.

    250 files take 15 ms.
    """
    root = pathlib.Path(__file__).parent.parent
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root)}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


SUFFIX = ".mrexport"
EXECUTABLE, STAGES = "executable", "stages"  # kinds

_MAGIC = b"MILLRACE-EXPORT-1\n"
_LENGTH = struct.Struct(">I")
_DIGEST_BYTES = hashlib.sha256().digest_size
_LONGEST_HEADER = 1 << 24  # bytes; a longer one is damage


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of its content."""

    kind: str
    key: ProgramKey
    environment: Mapping[str, str]  # versions, processor, platform: by name
    layers: tuple[str, ...] = ()  # of the model that it was made for, in order
    unroll: int | None = None  # the loop form of the plan's programs


def pack(header: Header, content: Any) -> bytes:
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
    first = json.dumps(fields).encode()
    rest = pickle.dumps(content)
    digest = hashlib.sha256(first)
    digest.update(rest)
    return b"".join((_MAGIC, _LENGTH.pack(len(first)), first, digest.digest(), rest))


def read_header(path: pathlib.Path) -> Header:
    """Returns what a file says of its content, which is not read.

    Raises:
        OSError: if it cannot be read.
        DamagedEntryError: if it is not what `pack` returned.
    """
    with open(path, "rb") as file:
        start = file.read(len(_MAGIC) + _LENGTH.size)
        return _header(file.read(_length(start)))


def unpack(data: bytes, header: Header) -> Any:
    """Returns the content of a file's bytes; this can run any code that its writer chose.

    Args:
        data: the bytes.
        header: that the file had when its directory was loaded.

    Raises:
        DamagedEntryError: if the bytes are not what `pack` returned for this header.
        Exception: of many classes, if what is pickled is not known here.
    """
    start = len(_MAGIC) + _LENGTH.size
    end = start + _length(data[:start])
    content = memoryview(data)[end + _DIGEST_BYTES :]
    digest = hashlib.sha256(data[start:end])
    digest.update(content)
    if digest.digest() != data[end : end + _DIGEST_BYTES]:
        raise DamagedEntryError("its checksum is another")
    if _header(data[start:end]) != header:
        raise DamagedEntryError("it was replaced by another one")
    return pickle.loads(content)


def _length(start: bytes) -> int:
    if not start:
        raise DamagedEntryError("it is empty")
    if not start.startswith(_MAGIC):
        raise DamagedEntryError("it is not an export of millrace's, or of another version of it")
    if len(start) < len(_MAGIC) + _LENGTH.size:
        raise DamagedEntryError("it ends in its header")
    (length,) = _LENGTH.unpack_from(start, len(_MAGIC))
    if length > _LONGEST_HEADER:
        raise DamagedEntryError("its header is damaged")
    return length


def _header(content: bytes) -> Header:
    try:
        fields: dict[str, Any] = json.loads(content)
        return Header(
            kind=str(fields["kind"]),
            key=unpack_key(base64.b64decode(fields["key"])),
            environment={str(k): str(v) for k, v in fields["environment"].items()},
            layers=tuple(map(str, fields["layers"])),
            unroll=None if fields["unroll"] is None else int(fields["unroll"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, zlib.error) as error:
        raise DamagedEntryError("its header is damaged") from error
