"""What docs/openenv.md and docs/mcp.md show, as it stands there: checked, trained, killed, resumed, verified."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

from crl.records import Episode, rows_of
from crl.run.directory import RunDirectory
from tests.processes import reap
from tests.tiny_run import ROOT
from tests.worlds.openenv.test_openenv import PROGRAM, command
from tests.worlds.whole import Folder

BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
PAGES = {name: BLOCK.findall((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")) for name in ("openenv", "mcp")}
FILES = {name: body for page in PAGES.values() for _, name, body in page if name}
COMMANDS = {page: next(body for kind, _, body in blocks if kind == "sh").splitlines() for page, blocks in PAGES.items()}


def test_both_pages_are_short() -> None:
    assert all(len((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8").split()) <= 800 for name in PAGES)
    assert all(len(lines) <= 10 for lines in COMMANDS.values())
    for name, body in FILES.items():
        compile(body, name, "exec")


def installed(folder: Path, *packages: str) -> Path:
    """An interpreter of its own with packages, or with this project's and those. Skips where there is no index."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    if "-c" in packages:
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "project.pth").write_text(sysconfig.get_path("purelib"))
    done = subprocess.run(
        [python, "-m", "pip", "install", "-q", "--retries", "1", *packages], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"{' '.join(packages)} cannot be installed here: {done.stderr.strip()[-200:]}")
    return python


@pytest.mark.slow
def test_a_server_of_openenv_is_played(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    setup, init, check, train = COMMANDS["openenv"]
    made, _, packages = setup.partition(" && ")
    assert made == "python3 -m venv .venv-openenv"
    installed(tmp_path / ".venv-openenv", packages.split()[-1])
    (tmp_path / "line.py").write_text(FILES["line.py"])
    folder.crl(init.removeprefix("crl ") + " --set start_seconds=600")
    assert "failed" not in folder.crl(check.removeprefix("crl ") + " --time-limit 1000")
    episodes = folder.trained(train.removeprefix("crl "), "line")
    assert episodes and all(row.error is None for row in episodes)


@pytest.mark.slow
def test_a_server_that_speaks_the_protocol_is_trained_on(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.crl(f"init moves --model tiny --environment openenv --set 'command={command('moves')}' --set success_at=-5")
    assert "failed" not in folder.crl("env check moves.yaml --episodes 20")
    episodes = folder.trained("train moves.yaml --rounds 2", "moves")
    assert {row.reward for row in episodes} and all(row.error is None for row in episodes)
    spoiled = yaml.safe_load((tmp_path / "moves.yaml").read_text())
    spoiled["method"]["families"][0]["environment"]["command"] = command("unseeded")
    (tmp_path / "spoiled.yaml").write_text(yaml.safe_dump({**spoiled, "name": "spoiled"}))
    for words in ("train spoiled.yaml --rounds 1 --no-prefect", "doctor spoiled.yaml"):
        assert "ignores its seed" in folder.crl(words, code=2)


TRAIN = "--rounds 2 --no-prefect --set runtime.validate_every=0 --set runtime.retry_delay_seconds=0.1"


def errors(run: Path) -> set[str | None]:
    """Reason codes of the episodes of both rounds, with None for those that did not break."""
    opened = RunDirectory.open(run)
    return {row.error for number in (1, 2) for row in rows_of(Episode, opened.read(number, "collect", Episode))}


@pytest.mark.slow
def test_a_server_that_dies_in_a_wave_costs_the_episodes_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its command starts it again; what it had broken off is in the record."""
    died = tmp_path / "died"
    monkeypatch.setenv("STANDIN_DIED", str(died))
    folder = Folder(tmp_path)
    folder.crl(f"init dies --model tiny --environment openenv --set 'command={command('dies')}'")
    died.unlink(missing_ok=True)
    folder.crl(f"train dies.yaml {TRAIN}")
    assert died.exists() and errors(tmp_path / "runs" / "dies") == {None, "environment_died"}
    folder.crl("verify runs/dies")


@pytest.mark.slow
def test_a_run_goes_on_when_its_server_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    died = tmp_path / "died"
    monkeypatch.setenv("STANDIN_DIED", str(died))
    died.touch()
    with subprocess.Popen([sys.executable, PROGRAM, "dies", "0"], stdout=subprocess.PIPE, text=True) as server:
        address = server.stdout.readline().strip()  # type: ignore[union-attr]
        folder = Folder(tmp_path)
        folder.crl(f"init away --model tiny --environment openenv --set address={address} --set answer_seconds=2")
        died.unlink()
        told = folder.crl(f"train away.yaml {TRAIN}", code=1)
        assert server.wait() == -signal.SIGKILL
    assert "environment_died" in told or "does not answer" in told, told
    port = address.rpartition(":")[2]
    again = subprocess.Popen([sys.executable, PROGRAM, "dies", port], stdout=subprocess.PIPE, text=True)
    try:
        assert again.stdout.readline()  # type: ignore[union-attr]
        folder.crl("resume runs/away")
        folder.crl("verify runs/away")
        assert errors(tmp_path / "runs" / "away") == {None, "environment_died"}
    finally:
        reap(again)
        again.stdout.close()  # type: ignore[union-attr]


@pytest.mark.slow
def test_tools_over_mcp_are_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install, init, check, train = COMMANDS["mcp"]
    assert install == "pip install -c constraints.txt -e '.[mcp]'"
    python = installed(tmp_path / "venv", "-c", str(ROOT / "constraints.txt"), "mcp")
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path), str(site)])  # the record names shop:Shop
    folder = Folder(tmp_path, python)
    for name in ("shop.py", "shop_server.py"):
        (tmp_path / name).write_text(FILES[name])
    folder.crl(init.removeprefix("crl "))
    assert "failed" not in folder.crl(check.removeprefix("crl "))
    episodes = folder.trained(train.removeprefix("crl "), "shop")
    assert episodes and all(row.error is None for row in episodes)
    shutil.rmtree(tmp_path / "venv")
