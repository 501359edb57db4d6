"""What docs/dataset.md shows, in whole rounds: trained, killed, resumed, verified; a changed file is refused."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from crl.cli import main
from crl.config import FamilyConfig
from crl.config.load import load_experiment
from crl.errors import BadInput
from crl.recipes.complementary.ready import check_demonstrations
from tests.tiny_run import ROOT
from tests.worlds.whole import Folder

BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
PAGES = {
    name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("dataset", "tutorial_environment")
}
FILES = {name: body for _, name, body in BLOCK.findall(PAGES["dataset"]) if name}
COMMANDS = next(body for kind, _, body in BLOCK.findall(PAGES["dataset"]) if kind == "sh").splitlines()
QUERY = next(body for kind, _, body in BLOCK.findall(PAGES["dataset"]) if kind == "sql")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the page, and nothing on the path but the project."""
    for name in ("rewards.py", "hints.py"):
        (tmp_path / name).write_text(FILES[name])
    rows = [{"prompt": f"What is {number} plus 4?", "answer": str(number + 4)} for number in range(60)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("rewards", "hints"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def here(words: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(words))
    return ended.value.code


def test_both_pages_show_the_same_ten_lines() -> None:
    shown = next(body for kind, _, body in BLOCK.findall(PAGES["tutorial_environment"]) if kind == "sh").splitlines()
    function = next(body for _, name, body in BLOCK.findall(PAGES["tutorial_environment"]) if name == "rewards.py")
    assert shown == COMMANDS and FILES["rewards.py"].startswith(function)
    assert len(shown) + len(function.splitlines()) <= 10
    assert len(PAGES["dataset"].split()) <= 800


def test_what_init_writes_can_be_trained_and_the_family_of_the_page_too(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert here(COMMANDS[0].removeprefix("crl ")) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    (family,) = load_experiment(folder / "sums.yaml").method.families
    held_out = family.held_out_seeds
    assert held_out is not None and family.evaluation_seeds.count <= held_out
    assert f"{60 - held_out} rows to train on, {held_out} held out to evaluate on" in said
    shown = yaml.safe_load(FILES["family.yaml"])
    environment = FamilyConfig.model_validate({**shown, "evaluation_seeds": {"start": 1000000, "count": 2}}).environment
    wave = environment.make()
    assert wave.reset_many([0])[0].messages == () and wave.step_many({0: "x"})[0].reward == -0.0005
    talk = {**shown["environment"], "answer": "hints:answer", "max_turns": 3}
    wave = FamilyConfig.model_validate({"name": "sums", "environment": talk}).environment.make()
    wave.reset_many([0])
    assert wave.step_many({0: "x"})[0].observation == "That is not it. Try again."


def test_a_warm_start_without_anything_to_imitate_is_refused(folder: Path) -> None:
    """It would teach the actor to answer nothing."""
    assert here(COMMANDS[0].removeprefix("crl ")) == 0
    warm = {"method.recipe.warm_start": {"actor_episodes": 8, "extractor_episodes": 0}}
    with pytest.raises(BadInput, match="knows no answer to imitate"):
        check_demonstrations(load_experiment(folder / "sums.yaml", warm).method)
    assert here(COMMANDS[0].removeprefix("crl ").replace("sums ", "warm ") + " --set completion=answer") == 0
    method = load_experiment(folder / "warm.yaml").method
    assert method.recipe.warm_start is not None  # type: ignore[attr-defined]
    check_demonstrations(method)


@pytest.mark.slow
def test_it_trains_is_killed_resumes_and_verifies(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    crl, run = Folder(folder).crl, folder / "runs" / "sums"
    init, check, train = (line.removeprefix("crl ") for line in COMMANDS)
    crl(init)
    assert "failed" not in crl(check)
    episodes = Folder(folder).trained(train, "sums")
    assert episodes and all(row.reward_names == ["correct"] and row.error is None for row in episodes)
    assert "correct" in crl(f"sql {run} {shlex.quote(QUERY)}")
    with (folder / "sums.jsonl").open("a") as file:
        file.write('{"prompt": "What is new?", "answer": "this"}\n')
    for words in (f"resume {run} --rounds 1", f"evaluate {run}", f"{train} --no-prefect"):
        assert "sums.jsonl has changed since the run was made" in crl(words, code=2)
    crl(f"verify {run}")
    assert "sums.jsonl (data)\n" in crl(f"verify {run} --data", code=4)
