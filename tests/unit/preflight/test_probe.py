"""Verdicts on models are asked of another process once, and kept."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from crl.config import Method
from crl.errors import BadInput
from crl.policies import resolve_model
from crl.preflight.probe import Comparison
from tests.architectures import write_small
from tests.processes import PATIENCE_SECONDS
from tests.unit.engine.harness import make_experiment

ROOT = Path(__file__).parents[3]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The processes that are started; models and verdicts are kept in a folder of the test's own."""
    monkeypatch.setenv("CRL_MODELS", str(tmp_path / "models"))
    started = list[Any]()

    class Counted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **more: Any) -> None:
            started.append(args)
            super().__init__(*args, **more)

    monkeypatch.setattr(subprocess, "Popen", Counted)
    yield started


def of(actor: str | Path, extractor: str | Path = "tiny") -> Method:
    method = make_experiment(recipe={"kind": "complementary"}).method
    models = {"actor": str(actor), "extractor": str(extractor)}
    roles = {name: role.model_copy(update={"model": models[name]}) for name, role in method.roles.items()}
    return method.model_copy(update={"roles": roles})


def check(method: Method, **more: Any) -> None:
    with Comparison(method) as models:
        for _, each in models.checks(**more):
            each()


@pytest.mark.slow
def test_a_wrong_model_is_refused_in_words_and_not_measured_again(asked: list[Any], tmp_path: Path) -> None:
    write_small("bert", tmp_path / "ahead", resolve_model("tiny").path, 512)
    for _ in range(2):
        with pytest.raises(BadInput) as caught:
            check(of("tiny", tmp_path / "ahead"))
    assert len(asked) == 1, "both models are asked about at once"
    assert "no way of sampling" in caught.value.found and str(tmp_path / "ahead") in caught.value.found
    assert caught.value.where == "method.roles.extractor.model" and caught.value.next_step
    begun = time.perf_counter()
    check(of("tiny"))
    assert len(asked) == 1 and time.perf_counter() - begun < 5


@pytest.mark.slow
def test_a_damaged_verdict_is_measured_again(asked: list[Any], tmp_path: Path) -> None:
    check(of("tiny"))
    for file in (tmp_path / "models" / "probes").iterdir():
        file.write_bytes(file.read_bytes().replace(b"null", b"true"))
    check(of("tiny"))
    check(of("tiny"))
    assert len(asked) == 2


def test_a_model_that_is_not_here_is_not_prepared_to_be_asked_about(asked: list[Any], tmp_path: Path) -> None:
    check(of("tiny"), prepare=False)
    assert asked == [] and not (tmp_path / "models").exists()


def test_a_process_that_ends_is_no_verdict_to_keep(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_model("tiny")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "killed"))
    Path(sys.executable).write_text("#!/bin/sh\nkill -9 $$\n", encoding="utf-8")
    Path(sys.executable).chmod(0o755)
    with pytest.raises(BadInput, match="signal 9"):
        check(of("tiny"))
    assert not any((tmp_path / "models").glob("probes/*"))


@pytest.mark.slow
def test_the_process_ends_with_the_one_that_asks(asked: list[Any]) -> None:
    """Terminated, it can end nothing itself."""
    resolve_model("tiny")
    code = (
        "import os, signal, sys; from tests.unit.preflight.test_probe import of; import crl.preflight.probe as probe\n"
        "with probe.Comparison(of('tiny')) as models:\n"
        "    print(models._measuring._process.pid, flush=True); sys.stdin.read()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    assert parent.stdout is not None and parent.stdin is not None
    child = psutil.Process(int(parent.stdout.readline()))
    while b"crl.engine.probe" not in " ".join(child.cmdline()).encode():
        time.sleep(0.05)
    parent.kill()
    parent.communicate()
    child.wait(timeout=PATIENCE_SECONDS)
