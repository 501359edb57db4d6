"""What the pages on environments show works as it stands there: the classes, their check, their games, the warm start.

They are docs/environments.md, docs/environment_class.md and docs/tutorial_environment.md.
"""

from __future__ import annotations

import io
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from crl.cli import main
from crl.config import ENVIRONMENTS, FamilyConfig, WarmStartConfig
from crl.config.load import load_experiment, parse_experiment
from crl.envs.check import conduct
from crl.envs.check.walks import walked
from crl.recipes.complementary.ready import check_demonstrations
from crl.run.directory import RunDirectory
from crl.worlds.alfworld.files import DOWNLOAD

ROOT = Path(__file__).parents[2]
PAGE, CLASS, TUTORIAL = (
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("environments", "environment_class", "tutorial_environment")
)
BLOCKS = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', TUTORIAL + CLASS + PAGE, re.MULTILINE | re.DOTALL))
ASKED, _, REST = PAGE.partition("## What there is")
ANSWERS = {
    heading: answer
    for text, mark in ((TUTORIAL, "##"), (ASKED, "###"))
    for heading, answer in re.findall(rf"^{mark} (.+?)\n(.*?)(?=^{mark} |\Z)", text, re.MULTILINE | re.DOTALL)
}
"""The ways to an environment that take a few commands, by their headings."""
REMOTE = '''
import asyncio

from crl.envs.game import Move
from stock import Stock


class Remote(Stock):
    """The same, behind a slow service."""

    kind: str = "remote:Remote"

    async def act(self, state: dict, action: str) -> Move:
        await asyncio.sleep(0.01)  # await client.post(…)
        return super().act(state, action)
'''
"""The page's class with tools, with an `act` that waits, as the page says that it may."""
MODULES = ("walk", "stock", "remote", "doors", "echo")


def commands(text: str) -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


COMMANDS = [*commands(CLASS), *commands(REST)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the environment of the page, on the path, and the repository's conf/ beside it."""
    for name in MODULES:
        (tmp_path / f"{name}.py").write_text(REMOTE if name == "remote" else BLOCKS[f"{name}.py"])
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in MODULES:
        sys.modules.pop(name, None)
        ENVIRONMENTS._loaded.pop(f"{name}:{name.title()}", None)


def run(command: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command)[1:])
    return ended.value.code


def test_the_class_has_about_40_lines() -> None:
    lines = [line for line in BLOCKS["walk.py"].splitlines() if line.strip()]
    assert len(lines) <= 40


@pytest.mark.slow
def test_every_command_runs_and_what_was_played_is_learned_from(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [command.split()[:3] for command in COMMANDS] == [
        ["crl", "env", "check"], ["crl", "env", "check"], ["crl", "init", "walk"], ["crl", "doctor", "walk.yaml"],
        ["crl", "train", "walk.yaml"], ["crl", "env", "play"], ["crl", "sql", "quickstart"],
    ]  # fmt: skip
    monkeypatch.setenv("CRL_RUNS", str(folder / "runs"))
    RunDirectory.create_or_open(load_experiment(ROOT / "conf/quickstart.yaml"), folder / "runs")
    assert run(COMMANDS[-1]) == 0 and "location" in capsys.readouterr().out
    environment = ENVIRONMENTS.validate("walk:Walk").make()
    environment.reset_many([3])
    moves: list[str] = []
    while (move := environment.oracle(0)) is not None:
        moves.append(move)
        environment.step_many({0: move})
    for command in (line for line in COMMANDS[:-1] if line.split()[1] == "env"):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{move}\n" for move in moves)))
        assert run(command) == 0, capsys.readouterr()
        shown = capsys.readouterr().out
        assert "failed" not in shown
    assert f"solved in {len(moves)} turns" in shown
    data = yaml.safe_load((ROOT / "conf/tiny.yaml").read_text(encoding="utf-8"))
    data["method"]["prompts"] = yaml.safe_load((ROOT / "conf/prompts/tiny.yaml").read_text(encoding="utf-8"))
    data["method"]["families"] = [yaml.safe_load(BLOCKS["family.yaml"])]
    data["method"]["recipe"] |= yaml.safe_load(BLOCKS["warm_start.yaml"])
    method = parse_experiment(data, base=folder, where="page").method
    start: Any = method.recipe.warm_start  # type: ignore[attr-defined]
    assert isinstance(start, WarmStartConfig) and start.recorded is not None
    assert [game.success for game in start.recorded[0].games] == [True]
    check_demonstrations(method)


def test_the_page_begins_with_the_question_and_every_answer_has_at_most_ten_lines() -> None:
    assert PAGE.index("## Which of these do you have?") < 30
    for heading, answer in ANSWERS.items():
        typed = re.findall(r"^```(?!text).+?\n(.*?)^```", answer, re.MULTILINE | re.DOTALL)
        assert 1 <= sum(body.count("\n") for body in typed) <= 11, heading


@pytest.mark.parametrize("name", ["doors", "echo"])
def test_a_class_of_an_answer_is_checked_and_makes_an_experiment(folder: Path, name: str) -> None:
    (command,) = [line for line in commands(TUTORIAL) if line.startswith(f"crl init {name} ")]
    assert run(command) == 0
    (family,) = load_experiment(folder / f"{name}.yaml").method.families
    for check in (conduct.starting(family.environment, [0, 1]), conduct.illegal_actions(family.environment, [0], 200)):
        assert {finding.outcome for finding in check} == {"ok"}, check


TRAINED = ("A class of your own", "A text game", "An environment of another library")


@pytest.mark.slow
@pytest.mark.parametrize("heading", TRAINED)
def test_the_commands_of_an_answer_run_and_a_round_is_trained(
    heading: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The data set's: tests/worlds/dataset/test_dataset_rounds.py; the bank's: tests/recipes/bank_from_chats.
    assert {"A data set and a reward function", "Chats, and no environment", *TRAINED} == set(ANSWERS)
    monkeypatch.setenv("CRL_RUNS", str(folder / "runs"))
    shown = commands(ANSWERS[heading])
    (made,) = [line for line in shown if line.startswith("crl init ")]
    name = made.split()[2]
    steps = [line for line in shown if not line.startswith("crl train ")]
    for command in (*steps, f"crl doctor {name}.yaml", f"crl env check {name}.yaml --episodes 20"):
        assert run(command) == 0, capsys.readouterr()
    train = next((line for line in shown if line.startswith("crl train ")), f"crl train {name}.yaml --rounds 1")
    assert run(f"{train} --no-prefect --set runtime.validate_every=0") == 0, capsys.readouterr()


@pytest.mark.slow
@pytest.mark.parametrize("example", ["walk", "tools", "waiting", "isolated"])
def test_what_doctor_calls_ready_is_trained(
    example: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CRL_RUNS", str(folder / "runs"))
    kind = {"tools": "stock:Stock", "waiting": "remote:Remote"}.get(example, "walk:Walk")
    path = f"{kind.partition(':')[0]}.yaml"
    assert run(f"crl init {path} --model tiny --environment {kind}") == 0
    if example == "isolated":
        data = yaml.safe_load((folder / path).read_text(encoding="utf-8"))
        data["method"]["families"] = [yaml.safe_load(BLOCKS["family.yaml"])]
        (folder / path).write_text(yaml.safe_dump(data), encoding="utf-8")
    assert run(f"crl doctor {path}") == 0, capsys.readouterr()
    fewer = "--set method.families.0.evaluation_seeds.count=4 --set runtime.validate_every=0"
    assert run(f"crl train {path} --rounds 1 --no-prefect {fewer}") == 0, capsys.readouterr()


@pytest.mark.parametrize("kind", ["stock:Stock", "remote:Remote"])
def test_tools_and_code_that_waits_keep_what_an_environment_promises(folder: Path, kind: str) -> None:
    config = ENVIRONMENTS.validate(kind)
    seeds, config = list(range(4)), config.model_copy(update={"max_turns": 5})
    for check in (conduct.starting(config, seeds), conduct.illegal_actions(config, seeds[:2], 20)):
        assert {finding.outcome for finding in check} == {"ok"}, check
    environment = config.make()
    walks = walked(environment, seeds, batch=4, turns=5).walks
    assert not [breach for walk in walks for breach in walk.breaches] and all(walk.done for walk in walks)
    assert getattr(environment, "steps_together", False) is (kind == "remote:Remote")
    environment.reset_many([1])
    step = environment.step_many({0: '{"arguments": {"number": "two"}, "name": "look"}'})[0]
    assert not step.legal and step.feedback == "Which drawer? Give its number."


def test_the_table_of_environments_names_only_what_there_is() -> None:
    table = PAGE.partition("## What there is")[2].partition("\n## ")[0]
    named = re.findall(r"^- `(\w+)`:", table, re.MULTILINE)
    assert {"frozenlake", "minihack", "realms", "shrines"} <= set(named) <= set(ENVIRONMENTS.names())


def test_files_of_others_are_got_as_refusals_say_and_searched_where_the_setting_says() -> None:
    rows = dict(re.findall(r"^- `(\w+)`.*: searched in (`\w+` of the environment.*)$", PAGE, re.MULTILINE))
    assert set(rows) == {"alfworld", "webshop", "hotpotqa"}
    for kind, row in rows.items():
        setting = row.split("`")[1]
        assert "null: $" in (ENVIRONMENTS.load(kind).model_fields[setting].description or ""), kind
    assert f"`{DOWNLOAD}`" in rows["alfworld"]


@pytest.mark.slow
def test_the_experiment_that_trains_on_it_has_nothing_missing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CRL_MODELS", str(folder / "models"))
    made, asked = (line for line in commands(CLASS) if line.split()[1] in ("init", "doctor"))
    assert run(made) == 0 and run(asked) == 0, capsys.readouterr()


def test_the_family_is_one(folder: Path) -> None:
    family = FamilyConfig.model_validate(yaml.safe_load(BLOCKS["family.yaml"]))
    assert family.isolate and family.step_time_limit_seconds == 30
