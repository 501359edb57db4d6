"""Writes safetensors files one tensor after another: nothing is held beside the one that is being written, and the file
is hashed on its way to the disk.

The bytes are those that the safetensors library writes of the same tensors; it wants all of them in memory, and its
files have to be read again to be hashed. Tensors are torch's, which need not be imported here.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from crl.run.files import remember

_TYPES = {
    "bool": ("BOOL", 1), "uint8": ("U8", 1), "int8": ("I8", 1), "float8_e5m2": ("F8_E5M2", 1),
    "float8_e4m3fn": ("F8_E4M3", 1), "int16": ("I16", 2), "uint16": ("U16", 2), "float16": ("F16", 2),
    "bfloat16": ("BF16", 2), "int32": ("I32", 4), "uint32": ("U32", 4), "float32": ("F32", 4), "float64": ("F64", 8),
    "int64": ("I64", 8), "uint64": ("U64", 8),
}  # fmt: skip
"""Types of torch, with their names in a file and the bytes of a number. A file begins with tensors of the last ones."""
_CHUNK = 1 << 24
"""Bytes that are hashed while they are written."""
_THREADED = 1 << 20
"""Of fewer, two threads would take longer than one."""

Layout = tuple[str, Sequence[int]]
"""Type, as torch names it, and shape of a tensor."""


def layout_of(tensor: Any) -> Layout:
    """That of a tensor of torch's."""
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def layout_bytes(layout: Layout) -> int:
    """Of the numbers of such a tensor."""
    return _TYPES[layout[0]][1] * math.prod(layout[1])


def write_tensors(
    path: Path,
    layouts: Mapping[str, Layout],
    made: Callable[[str], Any],
    *,
    metadata: Mapping[str, str] | None = None,
    hashed: bool = True,
) -> None:
    """Write a file of tensors by name. `made` is asked for each once, in the order of the file.

    Where it is `hashed`, what :func:`crl.run.files.sha256_once` says of it is the digest of what was written.
    """
    order = list(_TYPES)
    names = sorted(layouts, key=lambda name: (-order.index(layouts[name][0]), name))
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    end = 0
    for name in names:
        kind, shape = layouts[name]
        begin, end = end, end + layout_bytes(layouts[name])
        header[name] = {"dtype": _TYPES[kind][0], "shape": [*shape], "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256() if hashed else None
    path.unlink(missing_ok=True)  # tensors that were read from a file of this name are still mapped from it
    with path.open("wb") as file, ThreadPoolExecutor(1) as beside:

        def write(part: Any) -> None:
            if digest is not None and len(part) < _THREADED:
                digest.update(part)
            running = beside.submit(digest.update, part) if digest is not None and len(part) >= _THREADED else None
            file.write(part)
            if running is not None:
                running.result()

        write(len(text).to_bytes(8, "little") + text)
        for name in names:
            tensor = made(name).detach().cpu().contiguous()
            if (found := layout_of(tensor)) != (layouts[name][0], tuple(layouts[name][1])):
                raise AssertionError(f"{name} is {found}, and was to be {layouts[name]}")
            if tensor.nbytes:
                view = memoryview((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")
                for first in range(0, len(view), _CHUNK):
                    write(view[first : first + _CHUNK])
    if digest is not None:
        remember(path, digest.hexdigest())
