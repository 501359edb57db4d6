"""Exact inner-product indexes over experience embeddings, and their disposable cache.

A flat FAISS index; on a GPU where FAISS has GPU support and a GPU is there. An index is derived from the embeddings, so
a cached one (`<cache>/<key>/index.faiss` with `index.json` beside it) is only believed after its checksum, its shape
and the checksum of the embeddings it was made from agree; otherwise it is made again. What is found is never ranked by
FAISS's own numbers: `nearest` reads candidates generously and ranks them by a float64 cosine computed here, so that
CPU, GPU, batch size and thread count cannot change a result.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEPT = 16
"""Indexes a cache keeps: every round's bank makes new ones, and old ones are never asked for again."""
_GPU_LARGEST_K = 2048
_MARGIN = 1e-5
"""More than the float32 rounding of a unit inner product: what is farther below the last candidate cannot belong in."""


def embeddings_digest(embeddings_ND: NDArray[np.float32]) -> str:
    """SHA-256 over shape and values: the key of whatever is derived from these embeddings."""
    digest = hashlib.sha256(repr(embeddings_ND.shape).encode())
    digest.update(np.ascontiguousarray(embeddings_ND, dtype="<f4").tobytes())
    return digest.hexdigest()


def similarities(embeddings_ND: NDArray[np.float32], query_D: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cosines [N] of unit vectors in float64; a row's value does not depend on the rows beside it (no BLAS)."""
    products_ND = embeddings_ND.astype(np.float64) * query_D.astype(np.float64)
    return np.asarray(products_ND.sum(axis=1), dtype=np.float64)


class ExactIndex:
    """All embeddings of one scope, searched exhaustively."""

    def __init__(self, embeddings_ND: NDArray[np.float32], flat: Any | None = None, *, gpu: bool | None = None) -> None:
        """`flat` is a FAISS index already made of these embeddings; `gpu` None uses one where there is one."""
        self.embeddings_ND = np.ascontiguousarray(embeddings_ND, dtype=np.float32)
        self._flat = build_flat(self.embeddings_ND) if flat is None else flat
        self._gpu_index: Any | None = None
        if gpu_available() if gpu is None else gpu:
            import faiss

            self._resources = faiss.StandardGpuResources()
            self._gpu_index = faiss.index_cpu_to_gpu(self._resources, 0, self._flat)

    @property
    def on_gpu(self) -> bool:
        """Whether searches run on a GPU."""
        return self._gpu_index is not None

    def nearest(self, query_D: NDArray[np.float32], count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Rows and cosines of the `count` nearest embeddings (fewer where there are fewer), the nearest first.

        Equal cosines stand in row order, also where they straddle the cut.
        """
        total = len(self.embeddings_ND)
        count = min(count, total)
        if count == 0:
            return np.empty(0, np.int64), np.empty(0, np.float64)
        read = min(total, count + 16)
        while True:
            rows_K = self._search(query_D, read)
            values_K = similarities(self.embeddings_ND[rows_K], query_D)
            cut = np.partition(values_K, -count)[-count]
            if read == total or values_K.min() < cut - _MARGIN:
                break
            read = min(total, read * 4)
        best_K = np.lexsort((rows_K, -values_K))[:count]
        return rows_K[best_K], values_K[best_K]

    def _search(self, query_D: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        on_gpu = self._gpu_index is not None and count <= _GPU_LARGEST_K
        index = self._gpu_index if on_gpu else self._flat
        assert index is not None
        _, rows_1K = index.search(np.ascontiguousarray(query_D[None, :], dtype=np.float32), count)
        return np.asarray(rows_1K[0], dtype=np.int64)


def gpu_available() -> bool:
    """Whether this FAISS was built for GPUs and sees one."""
    import faiss

    return hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0


def build_flat(embeddings_ND: NDArray[np.float32]) -> Any:
    """A FAISS IndexFlatIP over [N, D] unit vectors."""
    import faiss

    flat = faiss.IndexFlatIP(embeddings_ND.shape[1])
    if len(embeddings_ND):
        flat.add(embeddings_ND)
    return flat


def cached_index(
    cache_dir: Path, digest_key: str, embeddings_ND: NDArray[np.float32], *, gpu: bool | None = None
) -> ExactIndex:
    """The index of these embeddings, from `cache_dir/<digest_key>/` or made and put there.

    A missing, damaged, truncated or foreign cache file is replaced; beyond :data:`KEPT` the oldest indexes go. A cache
    that cannot be written is done without: nothing that counts depends on it.
    """
    embeddings_ND = np.ascontiguousarray(embeddings_ND, dtype=np.float32)
    directory = cache_dir / digest_key
    digest = embeddings_digest(embeddings_ND)
    flat = _load(directory, digest, embeddings_ND.shape)
    if flat is None:
        flat = build_flat(embeddings_ND)
        with contextlib.suppress(OSError):
            _save(directory, digest, flat)
            _prune(cache_dir)
    return ExactIndex(embeddings_ND, flat, gpu=gpu)


def _load(directory: Path, embeddings_sha256: str, shape: tuple[int, ...]) -> Any | None:
    import faiss

    try:
        content = (directory / "index.faiss").read_bytes()
        beside = json.loads((directory / "index.json").read_text(encoding="utf-8"))
        expected = {"sha256": hashlib.sha256(content).hexdigest(), "embeddings_sha256": embeddings_sha256}
        if beside != expected:
            return None
        flat = faiss.deserialize_index(np.frombuffer(content, dtype=np.uint8))
    except (OSError, ValueError, RecursionError, RuntimeError):  # unreadable in whatever way: made again
        return None
    return flat if (flat.ntotal, flat.d) == shape else None


def _save(directory: Path, embeddings_sha256: str, flat: Any) -> None:
    import faiss

    content = faiss.serialize_index(flat).tobytes()
    beside = {"sha256": hashlib.sha256(content).hexdigest(), "embeddings_sha256": embeddings_sha256}
    directory.mkdir(parents=True, exist_ok=True)
    _write_atomically(directory / "index.faiss", content)
    # The description goes last: a crash in between leaves one that does not match, and the index is made again.
    _write_atomically(directory / "index.json", json.dumps(beside, sort_keys=True).encode())


def _prune(cache_dir: Path) -> None:
    made = sorted(cache_dir.glob("*/index.json"), key=lambda path: (path.stat().st_mtime_ns, path.parent.name))
    for beside in made[:-KEPT]:
        # The description first: an index without one is not believed. A directory that holds more stays.
        beside.unlink(missing_ok=True)
        beside.with_name("index.faiss").unlink(missing_ok=True)
        beside.parent.rmdir()


def _write_atomically(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
