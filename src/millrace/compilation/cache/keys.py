"""The keys of programs that were compiled before, by this process or an earlier one.

Each has a file of its own beside the executables, which are removed for the limit and are of no use
to another version; the key of a program remains useful for comparison.
"""

import json
import os
import pathlib
import re
import sys
import zlib
from typing import Any

from millrace.base.records.compilation import Aspect, KeyField, ProgramKey
from millrace.base.records.json_text import parse_json
from millrace.compilation.cache import files as cache_files

_MOST_FILES = 1000
_LONGEST = 1 << 22  # bytes of a key, unpacked


def write_key(root: pathlib.Path, key: ProgramKey) -> None:
    """Writes the key of a program, or marks the existing file as the newest.

    Raises:
        OSError: if it cannot be written.
    """
    name = f"{_slug(key.program)}-{key.digest}{cache_files.KEY_SUFFIX}"
    path = root / cache_files.KEYS / name
    try:
        os.utime(path)
    except FileNotFoundError:
        cache_files.write(path, pack_key(key))


def read_keys(root: pathlib.Path, program: str, most: int) -> list[ProgramKey]:
    """Returns the keys of a program, the last used first."""
    start = re.compile(re.escape(_slug(program)) + r"-[0-9a-f]{16}\.")
    matching = [file for file in cache_files.key_files(root) if start.match(file.path.name)]
    keys: list[ProgramKey] = []
    for file in sorted(matching, key=lambda file: -file.used):
        key = _read(file.path)
        if key is not None and key.program == program:
            keys.append(key)
            if len(keys) == most:
                break
    return keys


def remove_oldest(root: pathlib.Path) -> None:
    """Removes all but the newest thousand keys."""
    by_use = sorted(cache_files.key_files(root), key=lambda file: -file.used)
    for file in by_use[_MOST_FILES:]:
        cache_files.remove(file.path)


def current_script() -> str:
    """Returns the path of the running script; empty in a notebook and at a prompt."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.abspath(path) if path else ""


def _slug(program: str) -> str:
    return re.sub(r"\W+", "_", program)[:80]


def pack_key(key: ProgramKey) -> bytes:
    """Returns a key as bytes."""
    fields = [[f.aspect.value, f.name, f.value, f.where] for f in key.fields]
    values = [key.model, key.program, fields, key.is_complete, current_script()]
    return zlib.compress(json.dumps(values).encode())


def _read(path: pathlib.Path) -> ProgramKey | None:
    """Reads a key; a damaged file is removed, since only a hint is lost."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    try:
        return unpack_key(content)
    except ValueError:
        cache_files.remove(path)
        return None


def unpack_key(content: bytes) -> ProgramKey:
    """Returns the key of these bytes.

    Raises:
        ValueError: if they are not those of a key.
    """
    try:
        values: list[Any] = parse_json(zlib.decompressobj().decompress(content, _LONGEST))
        # Files of earlier versions have no script.
        model, program, fields, is_complete, *script = values
        key = ProgramKey(
            model=_text(model),
            program=_text(program),
            fields=tuple(
                KeyField(Aspect(a), _text(name), _text(value), _text(where))
                for a, name, value, where in fields
            ),
            is_complete=is_complete is True,
            script=_text(*script or [""]),
        )
        _ = key.digest  # of text with lone surrogates there is none
        return key
    except (TypeError, zlib.error) as error:
        raise ValueError(str(error)) from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text expected. Received: {type(value).__name__}")
    return value
