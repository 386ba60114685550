"""One file of the cache: an executable and its labels.

    header      JSON: key, environment, module, model, program, batch, ...
    content     the executable, as JAX made it

A file is read in full and checked before it is used: JAX passes the bytes to XLA, which can crash
on damaged ones.
"""

import json
import pathlib
import time

from millrace.cache.checked_file import DamagedEntryError, Format, fields_of
from millrace.records.run import CacheEntry, EntryLabels

SUFFIX = ".mrx"

_FORMAT = Format("a file", b"MILLRACE-EXECUTABLE-1\n", longest_header=1 << 20)
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
    payload = _FORMAT.content(content)
    if len(payload) != fields.get("bytes"):
        raise DamagedEntryError(f"it has {len(payload)} of {fields.get('bytes')} bytes")
    _FORMAT.check(content)
    if fields["environment"] != environment:
        raise DamagedEntryError(f"it is for {fields['environment']}")
    if fields["key"] != key:
        raise DamagedEntryError("it is another program")
    return bytes(payload), tuple(fields["layers"])


def read_entry(path: pathlib.Path, nbytes: int, used: float) -> CacheEntry:
    """Returns the header of a file, without reading the executable; little of it if damaged."""
    try:
        with open(path, "rb") as file:
            fields = fields_of(_FORMAT.read_header(file))
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
