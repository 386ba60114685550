"""Event files of TensorBoard, which need neither TensorFlow nor the package `tensorboard`.

file      records, one after another
record    length (8 bytes), checksum of it (4), an event, checksum of it (4)
event     a message of protocol buffers: time, step, and values under their tags

The numbers of the fields are those of TensorFlow's event.proto, summary.proto and tensor.proto.
"""

import os
import pathlib
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterable, Sequence

import numpy as np

_FLOAT, _STRING, _DOUBLE = 1, 7, 2  # types of tensors
_SCALAR, _TENSOR, _BLOBS = 1, 2, 3  # classes of data, which TensorBoard sorts values by
_POLYNOMIAL = 0x82F63B78  # of CRC-32C
BINS = 30  # of a histogram, unless the writer says otherwise


def _crc_table() -> list[int]:
    table: list[int] = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def checksum(data: bytes) -> int:
    """Returns the masked CRC-32C of bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _tensor(kind: int, shape: Sequence[int], content: bytes) -> bytes:
    dims = b"".join(_message(2, _number(1, size)) for size in shape)
    return _number(1, kind) + _message(2, dims) + content


def _texts(texts: Sequence[bytes], shape: Sequence[int]) -> bytes:
    return _tensor(_STRING, shape, b"".join(_message(8, text) for text in texts))


def _value(tag: str, plugin: str, kind: int, tensor: bytes, description: str = "") -> bytes:
    metadata = _message(1, _message(1, plugin.encode()))
    metadata += _message(3, description.encode()) if description else b""
    metadata += _number(4, kind)
    return _message(1, _message(1, tag.encode()) + _message(9, metadata) + _message(8, tensor))


def scalar_value(tag: str, number: float, description: str = "") -> bytes:
    """Returns a scalar as part of an event."""
    tensor = _tensor(_FLOAT, (), _message(5, struct.pack("<f", number)))
    return _value(tag, "scalars", _SCALAR, tensor, description)


def text_value(tag: str, texts: str | Iterable[str], description: str = "") -> bytes:
    """Returns a text, or a list of texts, as part of an event."""
    alone = isinstance(texts, str)
    listed = [texts] if isinstance(texts, str) else [str(each) for each in texts]
    tensor = _texts([each.encode() for each in listed], () if alone else (len(listed),))
    return _value(tag, "text", _TENSOR, tensor, description)


def histogram_value(
    tag: str, values: np.ndarray, bins: int | None = None, description: str = ""
) -> bytes:
    """Returns the histogram of an array as part of an event; non-finite elements are left out.

    Args:
        tag: its name.
        values: of any shape.
        bins: number of equal bins; None is 30.
        description: shown by TensorBoard.
    """
    flat = np.asarray(values, np.float64).ravel()
    flat = flat[np.isfinite(flat)]
    counts, edges = np.histogram(flat, bins or BINS) if flat.size else (np.zeros(0), np.zeros(1))
    rows = np.stack([edges[:-1], edges[1:], counts], axis=1).astype("<f8")
    tensor = _tensor(_DOUBLE, rows.shape, _message(4, rows.tobytes()))
    return _value(tag, "histograms", _TENSOR, tensor, description)


def image_value(tag: str, images: np.ndarray, limit: int = 3, description: str = "") -> bytes:
    """Returns images as part of an event.

    Args:
        tag: their name.
        images: `[n, height, width, channels]`: of 1 to 4 channels, as bytes or as floats of 0 to 1.
        limit: the largest number of images that are kept.
        description: shown by TensorBoard.
    """
    if images.dtype.kind == "f":
        images = (np.clip(images, 0, 1) * 255 + 0.5).astype(np.uint8)
    images = images.astype(np.uint8)[:limit]
    sizes = [str(images.shape[2]).encode(), str(images.shape[1]).encode()]
    blobs = [*sizes, *map(png, images)]
    return _value(tag, "images", _BLOBS, _texts(blobs, (len(blobs),)), description)


def model_value(json: str) -> bytes:
    """Returns the structure of a Keras model as part of an event."""
    return _value("keras", "graph_keras_model", _BLOBS, _texts([json.encode()], ()))


def png(image: np.ndarray) -> bytes:
    """Returns an image `[height, width, channels]` of bytes as a PNG file."""
    height, width, channels = image.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], axis=1)
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]

    def chunk(name: bytes, data: bytes) -> bytes:
        crc = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", crc)

    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(rows.tobytes()))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body + chunk(b"IEND", b"")


class EventWriter:
    """Appends events to one file, which is made with the first event.

    Args:
        directory: of the file.
        suffix: the end of its name.
    """

    def __init__(self, directory: str | os.PathLike[str], suffix: str = ".v2"):
        self.directory = pathlib.Path(directory)
        self._suffix = suffix
        self._path: pathlib.Path | None = None
        self._waiting: list[bytes] = []
        self._lock = threading.Lock()  # callbacks may run in a thread of their own

    def add(self, step: int, value: bytes, wall_time: float | None = None) -> None:
        """Adds an event, which the next `flush` writes.

        Args:
            step: its number.
            value: of one of the functions of this module.
            wall_time: in seconds since 1970; None is now.
        """
        now = time.time() if wall_time is None else wall_time
        event = struct.pack("<Bd", 9, now) + _number(2, int(step)) + _message(5, value)
        with self._lock:
            self._waiting.append(event)

    def flush(self) -> None:
        """Writes the events that are waiting."""
        with self._lock:
            if not self._waiting:
                return
            if self._path is None:
                self.directory.mkdir(parents=True, exist_ok=True)
                # TensorBoard recognizes its files by this part of the name.
                name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
                self._path = self.directory / f"{name}{self._suffix}"
                version = struct.pack("<Bd", 9, time.time()) + _message(3, b"brain.Event:2")
                self._waiting.insert(0, version)
            with self._path.open("ab") as file:
                for event in self._waiting:
                    length = struct.pack("<Q", len(event))
                    file.write(length + struct.pack("<I", checksum(length)))
                    file.write(event + struct.pack("<I", checksum(event)))
            self._waiting.clear()
