r"""One file of the cache: an executable, and what it is.

    MILLRACE-EXECUTABLE-1\n      22 bytes; the number changes with this format
    length of the header          4 bytes, big-endian
    header                        JSON: key, environment, module, model, program, batch, ...
    SHA-256                      32 bytes, of the header and the executable
    executable                    as JAX made it

A file is read in full before anything of it is believed: JAX hands the bytes to XLA, which can
crash on damaged ones.
"""

import hashlib
import json
import pathlib
import struct
import time
from typing import Any

from millrace.records.run import CacheEntry, EntryLabels

SUFFIX = ".mrx"

_MAGIC = b"MILLRACE-EXECUTABLE-1\n"
_LENGTH = struct.Struct(">I")
_DIGEST_BYTES = hashlib.sha256().digest_size
_LONGEST_HEADER = 1 << 20  # bytes; a longer one is damage
_LONGEST_LABEL = 2000  # characters of one


class DamagedEntryError(Exception):
    """A file is not what was written, or not for this key or machine; says how."""


def pack(key: str, environment: str, labels: EntryLabels, payload: bytes) -> bytes:
    """Returns the bytes of a file.

    Args:
        key: by which JAX finds the executable, `<module>-<hash>`.
        environment: version, platform and processor that it is for.
        labels: what a list shows of it.
        payload: the executable.
    """
    fields = {
        "key": key,
        "environment": environment,
        "module": key.rpartition("-")[0],
        "model": labels.model[:_LONGEST_LABEL],
        "program": labels.program[:_LONGEST_LABEL],
        "batch": labels.batch[:_LONGEST_LABEL],
        "created": time.time(),
        "layers": labels.layers,
        "bytes": len(payload),
    }
    header = json.dumps(fields).encode()
    if len(header) > _LONGEST_HEADER:
        header = json.dumps({**fields, "layers": ()}).encode()
    digest = hashlib.sha256(header)
    digest.update(payload)
    return b"".join((_MAGIC, _LENGTH.pack(len(header)), header, digest.digest(), payload))


def unpack(content: bytes, key: str, environment: str) -> tuple[bytes, tuple[str, ...]]:
    """Returns the executable of a file's bytes, and the layers of the model that it was made for.

    Raises:
        DamagedEntryError: if the bytes are not what `pack` returned for this key and environment.
    """
    header, fields = _header(content)
    start = len(_MAGIC) + _LENGTH.size + len(header)
    payload = memoryview(content)[start + _DIGEST_BYTES :]
    if len(payload) != fields.get("bytes"):
        raise DamagedEntryError(f"it has {len(payload)} of {fields.get('bytes')} bytes")
    digest = hashlib.sha256(header)
    digest.update(payload)
    if digest.digest() != content[start : start + _DIGEST_BYTES]:
        raise DamagedEntryError("its checksum is another")
    if fields["environment"] != environment:
        raise DamagedEntryError(f"it is for {fields['environment']}")
    if fields["key"] != key:
        raise DamagedEntryError("it is another program")
    return bytes(payload), tuple(fields["layers"])


def read_entry(path: pathlib.Path, nbytes: int, used: float) -> CacheEntry:
    """Returns what a file says of itself, without reading the executable; little if damaged."""
    try:
        with open(path, "rb") as file:
            start = file.read(len(_MAGIC) + _LENGTH.size)
            length = _length(start)
            fields = _header(start + file.read(length))[1]
        return CacheEntry(
            path=path,
            nbytes=nbytes,
            used=used,
            module=str(fields["module"]),
            model=str(fields["model"]),
            program=str(fields["program"]),
            batch=str(fields["batch"]),
            created=float(fields["created"]),
        )
    except (OSError, DamagedEntryError, KeyError, TypeError, ValueError):
        return CacheEntry(path=path, nbytes=nbytes, used=used, module=path.name.rpartition("-")[0])


def _length(content: bytes) -> int:
    if not content:
        raise DamagedEntryError("it is empty")
    if not content.startswith(_MAGIC):
        raise DamagedEntryError("it is not a file of millrace's, or of another version of it")
    if len(content) < len(_MAGIC) + _LENGTH.size:
        raise DamagedEntryError("it ends in its header")
    (length,) = _LENGTH.unpack_from(content, len(_MAGIC))
    if length > _LONGEST_HEADER:
        raise DamagedEntryError("its header is damaged")
    return length


def _header(content: bytes) -> tuple[bytes, dict[str, Any]]:
    length = _length(content)
    start = len(_MAGIC) + _LENGTH.size
    header = content[start : start + length]
    try:
        fields = json.loads(header)
    except ValueError as error:
        raise DamagedEntryError("its header is damaged") from error
    if not isinstance(fields, dict):
        raise DamagedEntryError("its header is damaged")
    return header, fields
