"""`crl env`: what there is, what is checked, and a person who plays, here through lines of standard input."""

from __future__ import annotations

import io
import json
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import yaml

from crl.cli.playing import action_of
from crl.config import ENVIRONMENTS
from crl.config.load import load_experiment
from crl.config.recorded import FORMAT, read_recorded
from crl.envs.frozenlake import FrozenLakeConfig
from crl.errors import BadInput
from crl.protocols import FreeText, Tool, ToolCalls
from crl.report.views import query
from tests.recipe_runs import requires
from tests.tiny_run import ROOT
from tests.unit.cli.conftest import Crl


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def way(seed: int, **settings: Any) -> list[str]:
    """The oracle's moves on a lake."""
    environment = FrozenLakeConfig(**settings).make()
    environment.reset_many([seed])
    moves: list[str] = []
    while (move := environment.oracle(0)) is not None:
        moves.append(move)
        environment.step_many({0: move})
    return moves


def test_every_environment_is_listed_with_what_it_is_and_whether_it_can_be_played(crl: Crl) -> None:
    listed = json.loads(crl("env", "list", "--json").out)
    assert [each["kind"] for each in listed] == ENVIRONMENTS.names()
    lake = next(each for each in listed if each["kind"] == "frozenlake")
    assert lake["playable"] is True and lake["missing"] is None and "FrozenLake" in lake["about"]


def test_one_that_cannot_be_played_says_why(crl: Crl, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Any) -> Any:
        raise BadInput("no such \x1b[2J package", next_step="pip install it")

    monkeypatch.setattr(FrozenLakeConfig, "make", missing)
    monkeypatch.setattr(type(ENVIRONMENTS), "names", lambda self: ["frozenlake", "not_there"])
    shown = crl("env", "list")
    assert shown.code == 0 and "no: no such \\x1b[2J package; pip install it" in shown.out
    assert "there is no environment 'not_there'" in shown.out


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        pytest.param("reasoning_gym", "dataset", marks=requires("reasoning_gym")),
        pytest.param("textworld", "games", marks=requires("textworld")),
    ],
)
def test_a_package_that_is_missing_is_named_before_settings_are(
    crl: Crl, monkeypatch: pytest.MonkeyPatch, kind: str, setting: str
) -> None:
    monkeypatch.setattr(type(ENVIRONMENTS), "names", lambda self: [kind])
    monkeypatch.setitem(sys.modules, kind, None)
    (listed,) = json.loads(crl("env", "list", "--json").out)
    assert f"the package {kind} cannot be imported" in listed["missing"]
    assert listed["next_step"] == f"pip install -c constraints.txt -e '.[{kind}]'"
    monkeypatch.setitem(sys.modules, kind, types.ModuleType(kind))
    (listed,) = json.loads(crl("env", "list", "--json").out)
    assert listed["missing"] == f"needs settings: {setting}" and listed["playable"] is False


@pytest.mark.slow
def test_a_check_is_a_table_or_json_and_an_exit_code(crl: Crl) -> None:
    done = crl("env", "check", "frozenlake", "--episodes", "8", "--set", "size_max=5", "--json")
    found = {each["check"]: each["outcome"] for each in json.loads(done.out)}
    assert done.code == 0 and found["determinism"] == found["oracle"] == found["held out"] == "ok"
    failed = crl("env", "check", "tests.unit.envs.misbehaving:MisbehavingConfig", "--episodes", "3")
    assert failed.code == 2 and "fails" in failed.err
    assert "its process ended" in failed.out or "KeyError" in failed.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nope:Env",), "No module named 'nope'"),
        (("frozenlak",), "did you mean 'frozenlake'"),
        (("frozenlake", "--set", "size=5"), "size: unknown key; did you mean"),
        (("frozenlake", "--family", "lake"), "--family is for the YAML file"),
        (("conf/tiny.yaml", "--family", "sea"), "has no task family 'sea'"),
        (("nothing.yaml",), "there is no file nothing.yaml"),
    ],
)
def test_what_cannot_be_checked_is_refused(crl: Crl, tiny: Path, words: tuple[str, ...], said: str) -> None:
    done = crl("env", "check", *words)
    assert done.code == 2 and said in done.err


@pytest.mark.slow
def test_a_module_is_found_in_this_folder(crl: Crl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unseen_helper.py").write_text("HIGHEST = 9\n")
    (tmp_path / "unseen_world.py").write_text(
        "import unseen_helper\nfrom crl.envs.sokoban import SokobanConfig\n\n"
        "class World(SokobanConfig):\n    kind: str = 'unseen_world:World'\n    highest: int = unseen_helper.HIGHEST\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    done = crl("env", "check", "unseen_world:World", "--episodes", "2")
    assert done.code == 2 and "No module named 'unseen_world'" in done.err
    monkeypatch.chdir(tmp_path)
    assert crl("env", "check", "unseen_world:World", "--episodes", "2", "--longest", "3").code == 0
    assert sys.path[-1] == str(tmp_path), "behind everything else: it hides nothing"


def test_a_person_plays_and_what_is_recorded_is_kept(crl: Crl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "games.jsonl"
    moves = way(3)
    typed(monkeypatch, "fly \x1b[2J", *moves, "wait")
    done = crl("env", "play", "frozenlake", "--seed", "3", "--record", file)
    assert done.code == 0 and f"solved in {len(moves) + 1} turns, reward 1" in done.out
    assert "That names no possible action." in done.out and "\x1b" not in done.out
    assert "1 finished game is in" in done.out and "one unfinished" in done.out
    head, first, second = map(json.loads, file.read_text().splitlines())
    assert head["format"] == FORMAT and head["environment"]["kind"] == "frozenlake"
    assert (first["seed"], first["finished"], first["success"]) == (3, True, True)
    assert [turn["action"] for turn in first["turns"]] == [None, *moves]
    assert first["turns"][0]["legal"] is False
    assert (second["seed"], second["finished"], len(second["turns"])) == (4, False, 1)
    typed(monkeypatch, *way(9))
    assert crl("env", "play", "frozenlake", "--seed", "9", "--record", file).code == 0
    kept = read_recorded(file)
    assert [game["seed"] for game in kept["games"]] == [3, 9], "games are added, and one that did not end is left out"


def test_the_prompt_is_shown_as_the_actor_reads_it(crl: Crl, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, "up")
    done = crl("env", "play", tiny, "--family", "lake", "--prompt", "tiny")
    assert done.code == 0 and done.out.count("[user]") >= 2 and "[system]" in done.out
    assert crl("env", "play", tiny, "--prompt", "none").code == 2


def test_ctrl_c_keeps_what_was_played(crl: Crl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(io.StringIO):
        def readline(self, size: int = -1, /) -> str:
            line = super().readline(size)
            if not line:
                raise KeyboardInterrupt
            return line

    file = tmp_path / "games.jsonl"
    monkeypatch.setattr(sys, "stdin", Interrupted("up\n"))
    done = crl("env", "play", "frozenlake", "--seed", "5", "--record", file)
    assert done.code == 130 and "0 finished games" in done.out
    assert json.loads(file.read_text().splitlines()[1])["finished"] is False


def test_games_of_other_settings_or_held_out_seeds_are_not_mixed(crl: Crl, tmp_path: Path) -> None:
    file = tmp_path / "games.jsonl"
    file.write_text(json.dumps({"format": FORMAT, "environment": {"kind": "realms"}}) + "\n")
    other = crl("env", "play", "frozenlake", "--record", file)
    assert other.code == 2 and "games of another environment" in other.err
    held_out = crl("env", "play", "frozenlake", "--seed", "1000000", "--record", tmp_path / "new.jsonl")
    assert held_out.code == 2 and "is not a training seed" in held_out.err


def test_a_line_means_what_an_actor_s_answer_would() -> None:
    names = ("go north", "go")
    assert action_of(" go north ", names) == "go north" and action_of("I go north.", names) == "go north"
    assert action_of("hm <action>go</action>", names) == "go" and action_of("fly", names) is None
    assert action_of("search[a b]", FreeText("search[words]")) == "search[a b]"
    tools = ToolCalls((Tool("f", "", {}),))
    assert action_of('{"name": "f"}', tools) == '{"arguments": {}, "name": "f"}'


LAKE = {"kind": "frozenlake", "size_min": 2, "size_max": 3, "frozen_probability": 0.9, "max_turns": 5}
CONSTRAINED = ("--set", "method.roles.actor.sampling.constrain=actions")


def lakes(folder: Path, **family: Any) -> Path:
    """The tiny experiment over very small lakes, which a model without training wins now and then."""
    data = yaml.safe_load((ROOT / "conf/tiny.yaml").read_text(encoding="utf-8"))
    data["method"]["families"] = [{"name": "lake", "environment": LAKE, "groups": 2, **family}]
    (folder / "prompts").mkdir(exist_ok=True)
    shutil.copy(ROOT / "conf/prompts/tiny.yaml", folder / "prompts")
    (folder / "lakes.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    return folder / "lakes.yaml"


@pytest.mark.slow
def test_tasks_that_are_solved_sometimes_are_listed_and_trained_on(crl: Crl, tmp_path: Path) -> None:
    asked = ("env", "solvable", lakes(tmp_path), *CONSTRAINED, "--tries", "6", "--seeds", "12")
    done = crl(*asked, "--to", tmp_path / "some.yaml", "--below", "0.8")
    assert done.code == 0, done.err
    listed = yaml.safe_load((tmp_path / "some.yaml").read_text())
    seeds, solved = listed["train_tasks"], listed["solved"]
    assert 0 < len(seeds) < 12 and list(solved) == seeds and all(0 < share <= 0.8 for share in solved.values())
    assert f"{len(seeds)} of " in done.out and "train_tasks: some.yaml" in done.out
    # Again they are the same; all of the tasks fall into one of three lists.
    again = crl(*asked, "--to", tmp_path / "again.yaml", "--below", "0.8")
    assert again.code == 0 and (tmp_path / "again.yaml").read_text() == (tmp_path / "some.yaml").read_text()
    assert crl(*asked, "--to", tmp_path / "some.yaml").code == 2, "nothing is overwritten"
    none = crl(*asked, "--to", tmp_path / "none.yaml", "--above", "0.98", "--below", "0.99")
    assert none.code == 2 and "no task of family lake" in none.err and not (tmp_path / "none.yaml").exists()
    path = lakes(tmp_path, train_tasks="some.yaml")
    assert load_experiment(path).method.families[0].train_tasks == seeds
    trained = crl("train", path, "--rounds", "1", "--no-prefect", "--runs", tmp_path / "runs", *CONSTRAINED)
    assert trained.code == 0, trained.err
    played = query(tmp_path / "runs/tiny", "SELECT DISTINCT environment_seed FROM episodes WHERE stage = 'collect'")[1]
    assert played and {seed for (seed,) in played} <= set(seeds)


def test_listed_tasks_are_a_part_of_the_method(tmp_path: Path) -> None:
    plain = load_experiment(lakes(tmp_path)).method
    assert list(plain.families[0].drawn[:3]) == [0, 1, 2] and "train_tasks" not in plain.families[0].model_dump()
    (tmp_path / "some.yaml").write_text("train_tasks: [7, 3]\nsolved: {7: 0.5, 3: 0.25}\n")
    listed = load_experiment(lakes(tmp_path, train_tasks="some.yaml")).method
    assert listed.families[0].drawn == [7, 3] and listed.digest() != plain.digest()
    assert listed.digest() == load_experiment(lakes(tmp_path, train_tasks=[7, 3])).method.digest()
    for wrong, said in (
        ([1_000_000], "no train seed"),
        ([3, 3], "twice"),
        ([], "at least 1"),
        ("gone.yaml", "no file"),
    ):
        with pytest.raises(BadInput, match=said):
            load_experiment(lakes(tmp_path, train_tasks=wrong))
    with pytest.raises(BadInput, match="recipe importance_replay draws from ranges"):
        load_experiment(ROOT / "conf/importance_replay.yaml", {"method.families.0.train_tasks": "[1, 2]"})
