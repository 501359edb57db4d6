"""The warm start that comes with the project is what its command makes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from crl.run.files import sha256_file

WARM = Path(__file__).parents[2] / "data" / "warm"
LARGEST = 4_000_000
"""Bytes of an adapter: it is in every clone and in the wheel."""


def maker() -> ModuleType:
    found = importlib.util.spec_from_file_location("make_warm_start", WARM / "make.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def made() -> dict[str, dict[str, str]]:
    content: dict[str, dict[str, str]] = json.loads((WARM / "quickstart/made.json").read_text(encoding="utf-8"))
    return content


def test_its_files_are_those_that_were_made_and_small(made: dict[str, dict[str, str]]) -> None:
    there = {path.relative_to(WARM / "quickstart").as_posix(): path for path in (WARM / "quickstart").glob("*/*")}
    assert {name: sha256_file(path) for name, path in there.items()} == made["sha256"]
    assert len(there) == 4 and all(path.stat().st_size < LARGEST for path in there.values())


@pytest.mark.slow
def test_its_command_makes_the_same_bytes(made: dict[str, dict[str, str]], tmp_path: Path) -> None:
    module = maker()
    if made["made_by"] != module.made_by():
        pytest.skip(f"made by {made['made_by']}, and here is {module.made_by()}")
    assert module.make("quickstart", tmp_path / "runs", tmp_path / "made") == made["sha256"]
