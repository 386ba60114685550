r"""Files that are written whole and verified when they are read, and the entries of the cache.

    MILLRACE-...-1\n          the kind of file; the number changes with its format
    length of the header       4 bytes, big-endian
    header                    JSON
    SHA-256                  32 bytes, of the header and the content
    content

The checksum finds damage; it does not prove who wrote the file.

    header      JSON: key, environment, module, model, program, batch, ...
    content     the executable, as JAX made it

A file is read in full and checked before it is used: JAX passes the bytes to XLA, which can crash
on damaged ones.
"""

import hashlib
import json
import struct
import time
from dataclasses import dataclass
from typing import Any, BinaryIO

from millrace.base.records.cache import EntryLabels
from millrace.base.records.json_text import parse_json
from millrace.base.records.printable import printable

_LENGTH = struct.Struct(">I")
_DIGEST_BYTES = hashlib.sha256().digest_size


class DamagedEntryError(Exception):
    """A file is damaged, or for another key or machine; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file."""

    name: str  # "an export", for messages
    magic: bytes  # the first bytes
    longest_header: int  # bytes; a longer one is damage

    def pack(self, header: bytes, content: bytes) -> bytes:
        """Returns the bytes of a file."""
        digest = _digest(header, content)
        return b"".join((self.magic, _LENGTH.pack(len(header)), header, digest, content))

    def read_header(self, file: BinaryIO) -> bytes:
        """Reads the header of an open file, and nothing else.

        Raises:
            DamagedEntryError: if it is not a file of this kind.
        """
        return file.read(self._length(file.read(len(self.magic) + _LENGTH.size)))

    def header(self, data: bytes) -> bytes:
        """Returns the header of a file's bytes, which may be damaged.

        Raises:
            DamagedEntryError: if it is not a file of this kind.
        """
        start = len(self.magic) + _LENGTH.size
        return data[start : start + self._length(data)]

    def content(self, data: bytes) -> memoryview:
        """Returns the content of a file's bytes, which may be damaged."""
        return memoryview(data)[self._digest_at(data) + _DIGEST_BYTES :]

    def check(self, data: bytes) -> None:
        """Compares a file's bytes with the checksum in them.

        Raises:
            DamagedEntryError: if they are not what was written.
        """
        at = self._digest_at(data)
        if _digest(self.header(data), self.content(data)) != data[at : at + _DIGEST_BYTES]:
            raise DamagedEntryError("its checksum is wrong")

    def _digest_at(self, data: bytes) -> int:
        return len(self.magic) + _LENGTH.size + self._length(data)

    def _length(self, start: bytes) -> int:
        if not start:
            raise DamagedEntryError("it is empty")
        if not start.startswith(self.magic):
            raise DamagedEntryError(f"it is not {self.name} of millrace, or is of another version")
        if len(start) < len(self.magic) + _LENGTH.size:
            raise DamagedEntryError("it ends in its header")
        (length,) = _LENGTH.unpack_from(start, len(self.magic))
        if length > self.longest_header:
            raise DamagedEntryError("its header is damaged")
        return length


def fields_of(header: bytes) -> dict[str, Any]:
    """Returns the fields of a header.

    Raises:
        DamagedEntryError: if it is not what was written.
    """
    try:
        fields = parse_json(header)
    except ValueError as error:
        raise DamagedEntryError("its header is damaged") from error
    if not isinstance(fields, dict):
        raise DamagedEntryError("its header is damaged")
    return fields


def _digest(header: bytes, content: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(header)
    digest.update(content)
    return digest.digest()


SUFFIX = ".mrx"

_FORMAT = Format("a file", b"MILLRACE-EXECUTABLE-1\n", longest_header=1 << 20)
_BITS = 63  # of a number of bytes
_LONGEST_LABEL = 2000  # characters of one


def pack(key: str, environment: str, labels: EntryLabels, payload: bytes) -> bytes:
    """Returns the bytes of a file.

    Args:
        key: by which JAX finds the executable, `<module>-<hash>`.
        environment: its version, platform and processor.
        labels: its description in lists.
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
    if len(header) > _FORMAT.longest_header:
        header = json.dumps({**fields, "layers": ()}).encode()
    return _FORMAT.pack(header, payload)


def unpack(content: bytes, key: str, environment: str) -> tuple[bytes, tuple[str, ...]]:
    """Returns the executable in a file's bytes, and the layers of its model.

    Raises:
        DamagedEntryError: if the bytes are not what `pack` returned for this key and environment.
    """
    fields = fields_of(_FORMAT.header(content))
    payload, nbytes = _FORMAT.content(content), fields.get("bytes")
    if not isinstance(nbytes, int) or nbytes.bit_length() > _BITS:
        raise DamagedEntryError("its header is damaged")
    if len(payload) != nbytes:
        raise DamagedEntryError(f"it has {len(payload)} of {nbytes} bytes")
    _FORMAT.check(content)
    if fields.get("environment") != environment:
        raise DamagedEntryError(f"it is for {printable(str(fields.get('environment')))[:200]}")
    if fields.get("key") != key:
        raise DamagedEntryError("it is another program")
    layers = fields.get("layers")
    if not isinstance(layers, list) or not all(isinstance(each, str) for each in layers):
        raise DamagedEntryError("its header is damaged")
    return bytes(payload), tuple(layers)
