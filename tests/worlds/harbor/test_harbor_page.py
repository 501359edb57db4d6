"""What docs/harbor.md shows, as it stands there: checked, trained, killed, resumed, verified."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

from crl.worlds.harbor.dockerfile import METADATA
from crl.worlds.harbor.environment import NoReward
from tests.tiny_run import ROOT
from tests.worlds.harbor.world import write
from tests.worlds.whole import Folder

PAGE = (ROOT / "docs/harbor.md").read_text(encoding="utf-8")
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
(LAYOUT,) = [body for kind, _, body in BLOCK.findall(PAGE) if kind == "text"]
(COMMANDS,) = [body.splitlines() for kind, _, body in BLOCK.findall(PAGE) if kind == "sh"]
FILES = {name: body for _, name, body in BLOCK.findall(PAGE) if name}
NAMES = ("anna", "ben", "carl", "dora", "emil", "fred", "gina", "hugo", "ida", "jan", "kim", "lea")


def tasks(folder: Path) -> None:
    """The tasks of the page: one per name."""
    for name in NAMES:
        files = {
            "instruction.md": f"Write `hello {name}` into greeting.txt.\n",
            "task.toml": "[verifier]\ntimeout_sec = 600\n",
            "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\n",
            "tests/test.sh": f"grep -qx 'hello {name}' greeting.txt\necho $((1 - $?)) > /logs/verifier/reward.txt\n",
            "solution/solve.sh": f"echo hello {name} > greeting.txt\n",
        }
        write(folder / f"greet-{name}", files)


def test_the_page_is_short_and_says_what_there_is() -> None:
    assert len(PAGE.split()) <= 800 and len(COMMANDS) <= 10
    compile(FILES["agent.py"], "agent.py", "exec")
    assert all(f"`{word}`" in PAGE for word in METADATA if word != "MAINTAINER") and NoReward.code in PAGE
    shown = dict(line.split(maxsplit=1) for line in LAYOUT.splitlines())
    assert {path.split("/", 2)[2] for path in shown} == {
        "instruction.md", "task.toml", "environment/Dockerfile", "tests/test.sh", "solution/solve.sh",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="no bubblewrap here")
@pytest.mark.skipif(importlib.util.find_spec("openai") is None, reason="openai is not installed")
def test_its_commands_train_and_a_killed_run_goes_on(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    tasks(tmp_path / "tasks")
    (tmp_path / "agent.py").write_text(FILES["agent.py"])
    init, check, train = COMMANDS
    folder.crl(init.removeprefix("crl ") + " --set call_seconds=3600 --set test_size=0.3")
    assert "failed" not in folder.crl(check.removeprefix("crl ") + " --time-limit 3600")
    smaller = " --set method.rollout.group_size=2 --set method.families.0.groups=2 --set method.evaluation.every=0"
    episodes = folder.trained(train.removeprefix("crl ") + smaller, "chores")
    assert len(episodes) == 4 and all(row.error is None and row.turns == 4 for row in episodes)
