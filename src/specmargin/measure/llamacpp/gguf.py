"""The header of a GGUF file: whether the file is whole, and how many bytes of weights it has. Nothing else is read.

The format: github.com/ggml-org/ggml/blob/master/docs/gguf.md; block sizes: ggml/src/ggml.c of llama.cpp.
"""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from specmargin.errors import InputError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = "general.alignment"
_STRING, _ARRAY = 8, 9
_FORMATS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_KEPT = (_ALIGNMENT, "general.architecture", "split.count")
_LONGEST_NAME = 1 << 16
#: By type of tensor: its name, weights per block, bytes per block.
_BLOCKS: Final = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
}


class _EndedError(Exception):
    """The file ended inside its header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    path: Path
    architecture: str  # as llama.cpp calls it: qwen3moe
    tensors: int
    weight_bytes: int
    formats: tuple[str, ...]  # of tensors, by bytes, largest first


@dataclass(slots=True, kw_only=True)
class _Found:
    values: dict[str, object] = field(default_factory=dict)
    end: int = 0  # of the last tensor, from the first
    weight_bytes: int = 0
    bytes_by_format: dict[str, int] = field(default_factory=dict)


def read_gguf(path: Path) -> GgufFile:
    """An error if the file is not GGUF, or shorter than its header says."""
    try:
        with path.open("rb") as file:
            return _read(file, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give the model as a GGUF file") from None
    except _EndedError:
        size = path.stat().st_size
        raise InputError(f"{path} is cut off: it ends after {size:,} bytes, inside its header; get it again") from None


def _read(file: BinaryIO, path: Path) -> GgufFile:
    if file.read(4) != _MAGIC:
        raise InputError(f"{path} is not a GGUF file: it does not begin with GGUF")
    version, tensors, entries = _unpack(file, "IQQ")
    if version not in _VERSIONS:
        raise InputError(f"{path} is GGUF of version {version}; this reads 2 and 3: convert the model again")
    found = _Found()
    for _ in range(entries):
        name = _text(file)
        value = _value(file, _unpack(file, "I")[0])
        if name in _KEPT:
            found.values[name] = value
    for _ in range(tensors):
        _add_tensor(file, found)
    _check_length(file, path, found)
    formats = sorted(found.bytes_by_format, key=lambda name: -found.bytes_by_format[name])
    return GgufFile(
        path=path,
        architecture=str(found.values.get("general.architecture", "")),
        tensors=tensors,
        weight_bytes=found.weight_bytes,
        formats=tuple(formats),
    )


def _add_tensor(file: BinaryIO, found: _Found) -> None:
    _text(file)
    dimensions = _unpack(file, "I")[0]
    sizes = _unpack(file, "Q" * dimensions)
    kind, offset = _unpack(file, "IQ")
    name, weights, block_bytes = _BLOCKS.get(kind, (f"type {kind}", 1, 0))  # newer types: only their start is known
    size = math.prod(sizes) // weights * block_bytes
    found.end = max(found.end, offset + size)
    found.weight_bytes += size
    found.bytes_by_format[name] = found.bytes_by_format.get(name, 0) + size


def _check_length(file: BinaryIO, path: Path, found: _Found) -> None:
    given = found.values.get(_ALIGNMENT, 32)
    alignment = given if isinstance(given, int) and given > 0 else 32
    wanted = math.ceil(file.tell() / alignment) * alignment + found.end
    size = os.fstat(file.fileno()).st_size
    if size < wanted:
        raise InputError(
            f"{path} is cut off: its tensors end at byte {wanted:,}, and the file has {size:,} bytes; get it again"
        )


def _unpack(file: BinaryIO, form: str) -> tuple[int, ...]:
    form = "<" + form
    data = file.read(struct.calcsize(form))
    if len(data) < struct.calcsize(form):
        raise _EndedError
    return struct.unpack(form, data)


def _text(file: BinaryIO) -> str:
    return _skipped_text(file, _LONGEST_NAME)


def _skipped_text(file: BinaryIO, kept: int) -> str:
    (length,) = _unpack(file, "Q")
    if length > kept:
        _skip(file, length)
        return ""
    data = file.read(length)
    if len(data) < length:
        raise _EndedError
    return data.decode("utf-8", errors="replace")


def _skip(file: BinaryIO, count: int) -> None:
    if file.tell() + count > os.fstat(file.fileno()).st_size:
        raise _EndedError
    file.seek(count, os.SEEK_CUR)


def _value(file: BinaryIO, kind: int) -> object:
    """Arrays, which hold the vocabulary, are passed over."""
    if kind == _STRING:
        return _text(file)
    if kind == _ARRAY:
        inner, count = _unpack(file, "IQ")
        if inner in _FORMATS:
            _skip(file, count * struct.calcsize("<" + _FORMATS[inner]))
        else:
            for _ in range(count):
                _value(file, inner)
        return None
    if kind not in _FORMATS:
        raise _EndedError
    return _unpack(file, _FORMATS[kind])[0]
