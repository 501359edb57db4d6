"""What searches, on what, and why: one FAISS, and a GPU index that is tried before it is used.

A made FAISS stands in for one with GPU support; its GPU index does what $MADE_FAISS says, also in the trial's process.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from crl.bank.index import ExactIndex, check_faiss, searcher
from crl.errors import BadInput
from tests.unit.bank.vectors import unit

ROOT = Path(__file__).parents[3]
MADE = """
import os
from pathlib import Path
import numpy
METRIC_INNER_PRODUCT = 0
HERE = Path(__file__).parent

def knn(queries, vectors, count, metric):
    products = queries @ vectors.T
    rows = numpy.argsort(-products, axis=1, kind="stable")[:, :count]
    return numpy.take_along_axis(products, rows, axis=1), rows

def get_num_gpus():
    return 1

class StandardGpuResources:
    made = 0
    def __init__(self):
        StandardGpuResources.made += 1

class GpuIndexFlatConfig:
    pass

class GpuIndexFlatIP:
    def __init__(self, resources, dimension, config):
        pass
    def add(self, vectors):
        self.vectors = vectors
    def search(self, queries, count):
        with (HERE / "searches").open("a") as file:
            file.write(f"{os.getpid()}\\n")
        does = (HERE / "does").read_text()
        if does == "abort":
            os.abort()
        if does == "full":
            raise RuntimeError("out of memory")
        values, rows = knn(queries, self.vectors, count, 0)
        return (values * 0 if does == "wrong" else values), rows
"""


class Made:
    """The made FAISS, and nvidia-smi beside it."""

    def __init__(self, folder: Path) -> None:
        self.faiss, self.bin = folder / "lib/faiss", folder / "bin"
        for each in (self.faiss, self.bin):
            each.mkdir(parents=True)
        (self.faiss / "__init__.py").write_text(MADE)
        self.driver("580.1")
        self.does("search")

    def does(self, what: str) -> None:
        (self.faiss / "does").write_text(what)

    def driver(self, version: str | None) -> None:
        script = self.bin / "nvidia-smi"
        script.write_text("#!/bin/sh\nexit 9\n" if version is None else f"#!/bin/sh\necho 'Made GPU, {version}'\n")
        script.chmod(0o755)

    def trials(self) -> int:
        """Processes that have searched on the made GPU."""
        path = self.faiss / "searches"
        return len(set(path.read_text().split())) if path.exists() else 0


def forget() -> None:
    """As a new process would begin."""
    from crl.bank.index.library import gpu_resources

    searcher.cache_clear()
    gpu_resources.cache_clear()


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    found = Made(tmp_path)
    monkeypatch.setenv("PATH", str(found.bin), prepend=":")
    monkeypatch.setenv("PYTHONPATH", f"{found.faiss.parent}:{ROOT}")
    monkeypatch.syspath_prepend(str(found.faiss.parent))
    monkeypatch.delitem(sys.modules, "faiss", raising=False)
    packages = {"faiss-gpu": "9.9"}
    monkeypatch.setattr("crl.bank.index.library.installed", lambda: packages)
    forget()
    yield found
    forget()
    monkeypatch.undo()
    sys.modules.pop("faiss", None)


def nearest(index: ExactIndex) -> list[list[int]]:
    return [rows.tolist() for rows, _ in index.nearest(unit(2, 4), 5)]


def test_the_gpu_searches_where_a_trial_went_well_and_all_indexes_share_its_memory(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert str(searcher()) == "searches on the GPU: faiss-gpu 9.9, Made GPU, 580.1"
    assert caplog.messages == ["FAISS searches on the GPU: faiss-gpu 9.9, Made GPU, 580.1"], "once"
    assert made.trials() == 1, "in a process of its own"
    vectors = unit(1, 50)
    indexes = [ExactIndex(vectors) for _ in range(3)]
    assert all(index.on_gpu for index in indexes)
    assert nearest(indexes[0]) == nearest(ExactIndex(vectors, gpu=False))
    assert sys.modules["faiss"].StandardGpuResources.made == 1
    assert made.trials() == 2, "the trial's process, and this one"


@pytest.mark.parametrize(("does", "why"), [
    ("abort", "ended a trial with SIGABRT"), ("wrong", "failed a trial: it finds other values"),
    ("full", "failed a trial: RuntimeError: out of memory"),
])  # fmt: skip
def test_the_cpu_searches_where_the_trial_failed(
    made: Made, does: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    made.does(does)
    with caplog.at_level(logging.WARNING):
        assert not searcher().gpu
    assert why in searcher().why and why in caplog.text and "on the CPU" in caplog.text
    vectors = unit(1, 50)
    index = ExactIndex(vectors)
    assert not index.on_gpu and nearest(index) == nearest(ExactIndex(vectors, gpu=False))


def test_a_gpu_that_nobody_can_name_is_tried_all_the_same(made: Made) -> None:
    made.driver(None)
    assert str(searcher()) == "searches on the GPU: faiss-gpu 9.9" and made.trials() == 1


def test_a_faiss_without_gpu_support_is_tried_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crl.bank.index.library.subprocess.run", lambda *_, **__: pytest.fail("a trial"))
    forget()
    assert not searcher().gpu and "faiss-cpu" in searcher().why and "no GPU support" in str(searcher())
    forget()


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[..., BadInput]:
    """What is said where these packages are installed."""

    def said(*names: str, importable: bool = True) -> BadInput:
        monkeypatch.setattr("crl.bank.index.library.installed", lambda: dict.fromkeys(names, "1.15.1"))
        if not importable:
            monkeypatch.setitem(sys.modules, "faiss", None)
        with pytest.raises(BadInput) as caught:
            if importable:
                check_faiss()
            else:
                ExactIndex(np.eye(3, dtype=np.float32), gpu=False).nearest(np.eye(3, dtype=np.float32), 1)
        return caught.value

    return said


def test_two_at_once_are_refused_and_what_to_type_is_said(found: Callable[..., BadInput]) -> None:
    said = str(found("faiss-cpu", "faiss-gpu"))
    assert "faiss-cpu and faiss-gpu are installed together" in said and "exactly one" in said
    assert "pip uninstall -y faiss-cpu faiss-gpu" in said and "pip install faiss-cpu" in said


def test_a_missing_faiss_and_a_broken_one_are_named(
    found: Callable[..., BadInput], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = str(found("faiss-gpu", importable=False))
    assert "cannot be imported" in broken and "pip install --force-reinstall --no-deps faiss-gpu" in broken
    monkeypatch.setattr("crl.bank.index.library.importlib.util.find_spec", lambda _name: None)
    missing = str(found(importable=False))
    assert "FAISS" in missing and "is not installed" in missing and "pip install faiss-cpu" in missing
