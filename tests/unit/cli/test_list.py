"""`crl list`, `crl --version` and `crl ui` as typed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import crl as package
from crl.report.overview import overview
from crl.run.journal import STOPPED, Journal
from tests.unit.cli.conftest import ROOT, Crl


def test_the_version_is_that_of_the_package(crl: Crl) -> None:
    assert crl("--version").out == f"crl {package.__version__}\n"
    assert f'version = "{package.__version__}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.slow
def test_runs_are_listed_with_where_they_stand(crl: Crl, room: Path) -> None:
    shutil.copytree(room, room.with_name("asked"))
    Journal(room.with_name("asked")).record("target", token=1, last=9)
    (room.with_name("broken") / "rounds").mkdir(parents=True)
    (room.with_name("no-run")).mkdir()
    found = {each.name: each for each in overview(room.parent)}
    assert found.keys() == {"room", "asked", "broken"}
    assert found["broken"].state == "damaged" and found["asked"].asked == 9
    assert found["room"].evaluated == 2 and found["room"].with_bank.episodes > 0
    Journal(room.with_name("asked")).record(STOPPED, token=1)
    assert found["asked"].state == "unfinished"
    assert {each.name: each.state for each in overview(room.parent)}["asked"] == "stopped"
    listed = crl("list")
    assert listed.code == 0 and all(name in listed.out for name in found) and "no-run" not in listed.out
    assert found["room"].with_bank.words in listed.out
    printed = {each["name"]: each for each in json.loads(crl("list", "--json").out)}
    assert printed["room"]["with_bank"] == found["room"].with_bank.value and printed["broken"]["with_bank"] is None


def test_without_a_run_it_says_how_to_begin(crl: Crl, runs: Path) -> None:
    listed = crl("list")
    assert listed.code == 0 and "crl init" in listed.out and "crl list --experiments" in listed.out
    assert crl("list", "--json").out == "[]\n"


def test_experiments_are_those_here_and_those_that_come_with_it(
    crl: Crl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "conf/tiny.yaml", tmp_path / "mine.yaml")
    listed = json.loads(crl("list", "--experiments", "--json").out)
    assert [each["name"] for each in listed][:2] == ["mine.yaml", "quickstart"]
    assert all(each["about"] for each in listed)
    assert "study/tiny" not in str(listed) and "warm/realms" not in str(listed)
    printed = crl("list", "--experiments").out
    assert "quickstart" in printed and "crl init NAME" in printed


@pytest.mark.parametrize(
    ("words", "ports"),
    [([], (4200, 4201)), (["--port", "5000"], (5000, 5001)), (["--port", "65535", "--pages-port", "7"], (65535, 7))],
)
def test_the_ports_of_the_ui(
    crl: Crl, monkeypatch: pytest.MonkeyPatch, words: list[str], ports: tuple[int, int]
) -> None:
    from flows.ui import DevServer

    began: list[tuple[int, int]] = []
    monkeypatch.setattr(DevServer, "run", lambda self: began.append((self.port, self.pages_port)))
    assert crl("ui", *words).code == 0 and began == [ports]


@pytest.mark.parametrize("name", ["flows", "tasks", "crl"])
def test_the_ui_is_refused_where_prefect_would_run_packages_of_the_folder(
    crl: Crl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from flows.ui import DevServer

    monkeypatch.setattr(DevServer, "run", lambda self: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    assert crl("ui").code == 0, "a folder without modules is no package"
    (tmp_path / name / "__init__.py").touch()
    refused = crl("ui")
    assert refused.code == 2 and f"a Python package `{name}`" in refused.err and "another folder" in refused.err
