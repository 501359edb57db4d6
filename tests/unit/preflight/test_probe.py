"""Verdicts on models are asked of another process once, and kept."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crl.config import Method
from crl.errors import BadInput
from crl.policies import resolve_model
from crl.preflight.probe import probe_checks
from tests.architectures import write_small
from tests.unit.engine.harness import make_experiment


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The processes that are started; models and verdicts are kept in a folder of the test's own."""
    monkeypatch.setenv("CRL_MODELS", str(tmp_path / "models"))
    started, run = list[Any](), subprocess.run

    def counted(*args: Any, **more: Any) -> Any:
        started.append(args)
        return run(*args, **more)

    monkeypatch.setattr(subprocess, "run", counted)
    yield started


def of(model: str | Path) -> Method:
    method = make_experiment(recipe={"kind": "complementary"}).method
    roles = {name: role.model_copy(update={"model": str(model)}) for name, role in method.roles.items()}
    return method.model_copy(update={"roles": roles})


def check(method: Method, **more: Any) -> None:
    for _, each in probe_checks(method, **more):
        each()


def test_a_verdict_is_kept_until_something_changes(asked: list[Any], tmp_path: Path) -> None:
    check(of("tiny"))
    assert len(asked) == 1, "both roles are asked about at once"
    begun = time.perf_counter()
    check(of("tiny"))
    assert len(asked) == 1 and time.perf_counter() - begun < 5
    # Damaged, it is measured again, and whole afterward.
    for file in (tmp_path / "models" / "probes").iterdir():
        file.write_bytes(file.read_bytes().replace(b"null", b"true"))
    check(of("tiny"))
    check(of("tiny"))
    assert len(asked) == 2


def test_a_wrong_model_is_refused_in_words(asked: list[Any], tmp_path: Path) -> None:
    write_small("stablelm", tmp_path / "stable", resolve_model("tiny").path, 512)
    for _ in range(2):
        with pytest.raises(BadInput) as caught:
            check(of(tmp_path / "stable"))
    assert len(asked) == 1 and caught.value.exit_code == 2
    assert "StableLmForCausalLM" in caught.value.found and "stable" in caught.value.found
    assert caught.value.where and caught.value.where.startswith("method.roles.") and caught.value.next_step


def test_a_model_that_is_not_here_is_not_prepared_to_be_asked_about(asked: list[Any], tmp_path: Path) -> None:
    check(of("tiny"), prepare=False)
    assert asked == [] and not (tmp_path / "models").exists()


def test_a_process_that_ends_is_no_verdict_to_keep(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_model("tiny")
    dead = subprocess.CompletedProcess([], -9)
    monkeypatch.setattr(subprocess, "run", lambda *args, **more: dead)
    with pytest.raises(BadInput, match="signal 9"):
        check(of("tiny"))
    assert not any((tmp_path / "models").glob("probes/*"))
