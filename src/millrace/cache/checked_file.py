r"""Files with a header and a checksum: those of the cache, and those of an export.

    MILLRACE-...-1\n          the kind of file; the number changes with its format
    length of the header       4 bytes, big-endian
    header                    JSON
    SHA-256                  32 bytes, of the header and the content
    content

The checksum finds damage; it does not prove who wrote the file.
"""

import hashlib
import json
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO

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
        fields = json.loads(header)
    except ValueError as error:
        raise DamagedEntryError("its header is damaged") from error
    if not isinstance(fields, dict):
        raise DamagedEntryError("its header is damaged")
    return fields


def _digest(header: bytes, content: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(header)
    digest.update(content)
    return digest.digest()
