"""What docs/verifiers.md shows, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from crl.records import Episode, rows_of
from crl.run.directory import RunDirectory
from crl.worlds.verifiers import VerifiersConfig
from crl.worlds.verifiers.environment import SETUP
from tests.tiny_run import ROOT
from tests.worlds.verifiers.test_verifiers_rounds import python
from tests.worlds.whole import Folder

PAGE = (ROOT / "docs/verifiers.md").read_text(encoding="utf-8")
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
FILES = {name: body for _, name, body in BLOCK.findall(PAGE) if name}
(COMMANDS,) = [body.splitlines() for kind, _, body in BLOCK.findall(PAGE) if kind == "sh"]
__all__ = ["python"]


def test_the_page_is_short_and_says_what_there_is() -> None:
    assert len(PAGE.split()) <= 800 and len(COMMANDS) <= 10 and COMMANDS[0] == SETUP
    settings = yaml.safe_load(FILES["a family's environment"])
    assert VerifiersConfig.model_validate(settings).args == {"count": 500}
    assert set(settings) | {"success_at"} == set(VerifiersConfig.__annotations__) - {"model_config"}
    compile(FILES["adding.py"], "adding.py", "exec")


@pytest.mark.slow
def test_its_commands_train(python: Path, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    (tmp_path / "adding.py").write_text(FILES["adding.py"])
    _, init, doctor, train = (words.removeprefix("crl ") for words in COMMANDS)
    (tmp_path / ".venv-verifiers").symlink_to(python.parent.parent)
    folder.crl(f"{init} --set call_seconds=3600")
    assert "cannot" not in folder.crl(doctor)
    smaller = "--no-prefect --set method.rollout.group_size=2 --set method.families.0.groups=1"
    folder.crl(f"{train} {smaller} --set method.evaluation.every=0")
    run = RunDirectory.open(tmp_path / "runs" / "sums")
    episodes = rows_of(Episode, run.read(2, "collect", Episode))
    assert len(episodes) == 2 and all(row.error is None and row.turns == 1 for row in episodes)
    assert all(row.reward_names == ["right", "num_turns"] for row in episodes)
    folder.crl("verify runs/sums")
