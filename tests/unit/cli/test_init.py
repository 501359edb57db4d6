"""`crl init`: a file that a person reads and edits, from an environment; docs/dataset.md has one of a data set."""

from __future__ import annotations

from pathlib import Path

import pytest

from crl.config.load import load_experiment
from crl.envs import make_environment
from crl.rollout.prompts import check_prompts
from tests.unit.cli.conftest import Crl

GUESS = '''
from random import Random
from typing import Any
from crl.envs.game import Game, Move
from crl.protocols import Actions, FreeText


class Guess(Game):
    """Say the number."""

    kind: str = "written_guess:Guess"

    def begin(self, random: Random) -> Any:
        return random.randint(1, 9)

    def goal(self, state: Any) -> str:
        return "Say the number."

    def look(self, state: Any) -> str:
        return "It is hidden."

    def actions(self, state: Any) -> Actions:
        return FreeText("a number")

    def act(self, state: Any, action: str) -> Move:
        return Move(success=action == str(state), over=True)
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "written_guess.py").write_text(GUESS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "prompts", "constrain"),
    [("frozenlake", "actions", "actions"), ("written_guess:Guess", "free_text", "none")],
)
def test_an_environment_gets_the_prompts_that_its_actions_need(
    crl: Crl, here: Path, kind: str, prompts: str, constrain: str
) -> None:
    done = crl("init", "mine", "--model", "tiny", "--environment", kind, "--set", "max_turns=5")
    assert done.code == 0, done.err
    assert f"wrote prompts/{prompts}.yaml\nwrote mine.yaml\n" in done.out and "crl train mine.yaml" in done.out
    text = (here / "mine.yaml").read_text()
    assert len(text.splitlines()) <= 16 and max(map(len, text.splitlines())) <= 150
    made = load_experiment(here / "mine.yaml")
    (family,) = made.method.families
    assert made.name == family.name == "mine" and family.environment.max_turns == 5  # type: ignore[attr-defined]
    assert made.method.role("actor").sampling.constrain == constrain
    check_prompts(made.method.prompts)
    make_environment(family).close()


def test_a_name_may_be_a_path_and_nothing_is_overwritten(crl: Crl, here: Path) -> None:
    words = ("--model", "tiny", "--environment", "frozenlake")
    (here / "conf" / "prompts").mkdir(parents=True)
    (here / "conf" / "prompts" / "actions.yaml").write_bytes(
        (Path(__file__).parents[3] / "conf/prompts/actions.yaml").read_bytes()
    )
    done = crl("init", "conf/My-Lake.yaml", *words)
    assert done.code == 2 and "name" in done.err, "a name of a run is lower case"
    assert not (here / "conf" / "My-Lake.yaml").exists()
    assert crl("init", "conf/2-lakes", *words).out.startswith("wrote conf/2-lakes.yaml\n"), "the prompts were there"
    assert load_experiment(here / "conf" / "2-lakes.yaml").method.families[0].name == "task"
    again = crl("init", "conf/2-lakes", *words)
    assert again.code == 2 and "conf/2-lakes.yaml is there already" in again.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no training data is named"),
        (("--dataset", "x.jsonl", "--environment", "frozenlake"), "both --dataset and --environment"),
        (("--dataset", "x.jsonl"), "--dataset needs --reward"),
        (("--environment", "frozenlake", "--reward", "a:b"), "--reward is for --dataset"),
        (("--environment", "frozenlak"), "did you mean 'frozenlake'"),
        (("--environment", "frozenlake", "--set", "size=3"), "unknown key"),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(
    crl: Crl, here: Path, words: tuple[str, ...], said: str
) -> None:
    done = crl("init", "mine", "--model", "tiny", *words)
    assert done.code == 2 and said in done.err, done.err
    assert not (here / "mine.yaml").exists() and not (here / "prompts").exists()


@pytest.mark.parametrize(
    ("words", "file", "name"),
    [
        ((), "quickstart.yaml", "quickstart"),
        (("tiny",), "tiny.yaml", "tiny"),
        (("objectives/gspo",), "gspo.yaml", "gspo"),
        (("mine",), "mine.yaml", "mine"),
        (("sub/12", "--from", "conf/tiny.yaml"), "sub/12.yaml", "12"),
        (("--from", "erl_tiny"), "erl_tiny.yaml", "erl-tiny"),
    ],
)
def test_without_a_model_it_is_a_copy_of_one_that_comes_with_the_project(
    crl: Crl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], file: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = crl("init", *words)
    assert done.code == 0, done.err
    assert f"wrote {file}\n" in done.out and f"crl train {file}" in done.out
    made = load_experiment(file)
    assert made.name == name
    with monkeypatch.context() as patch:
        for module in ("paths", "config.load"):
            patch.setattr(f"crl.{module}.shipped", lambda: tmp_path / "nothing")
        assert load_experiment(file) == made, "its prompts were copied, to be edited"
    again = crl("init", file)
    assert again.code == 2 and "is there already" in again.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("x", "--from", "quikstart"), "did you mean 'quickstart'"),
        (("x", "--from", "study/tiny"), "there is no experiment study/tiny"),
        (("x", "--from", "tiny", "--model", "tiny"), "--from copies an experiment as it is"),
        (("x", "--environment", "frozenlake"), "no model is given"),
        (("--model", "tiny", "--environment", "frozenlake"), "no name is given"),
        (("Not-A-Name",), "name"),
    ],
)
def test_a_copy_that_cannot_be_made_is_refused_and_leaves_nothing(
    crl: Crl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = crl("init", *words)
    assert done.code == 2 and said in done.err, done.err
    assert list(tmp_path.iterdir()) == []
