"""`kind: verifiers`: what its interpreter lists, what is refused, and what an episode earns. A stand-in for the package
is enough; test_verifiers_rounds.py has the package itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from crl.config import FamilyConfig
from crl.errors import BadInput
from crl.protocols import RunsPrograms, StopReason
from crl.worlds.verifiers import VerifiersConfig
from crl.worlds.verifiers.play import OUTCOME, digest_of, text_of

STANDIN = """
import importlib
from types import ModuleType
def load_environment(id, **args): return importlib.import_module(id).load_environment(**args)
"""
MODULE = """
import random
class Environment:
    pass_threshold, sampling_args, requires_group_rollouts = 0.75, {}, False
    def __init__(self, train, evaluation, groups):
        self.requires_group_rollouts = groups
        self.dataset_source = (lambda: 1) if train else None
        self.eval_dataset_source = (lambda: 1) if evaluation else None
        self.train = [self.row(at) for at in range(train)]
        self.evaluation = [self.row(at) for at in range(train - 1, train - 1 + evaluation)]
    def row(self, at):
        prompt = [{"role": "system", "content": "Add."}, {"role": "user", "content": f"{at} and {random.random()}"}]
        return {"example_id": at, "prompt": prompt, "answer": str(at)}
    def get_dataset(self): return self.train
    def get_eval_dataset(self): return self.evaluation
def load_environment(train=6, evaluation=0, groups=False): return Environment(train, evaluation, groups)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an environment; the interpreter that runs this has a stand-in for verifiers."""
    (tmp_path / "standin").mkdir()
    (tmp_path / "standin" / "verifiers.py").write_text(STANDIN)
    (tmp_path / "sums.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "standin"))
    return tmp_path


def config(**changes: Any) -> VerifiersConfig:
    return VerifiersConfig(**{"id": "sums", "python": sys.executable, **changes})


def test_its_rows_are_the_tasks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = config(args={"train": 12}, test_size=0.3)
    sides = made.sides()
    assert made.held_out_levels == len(sides.held_out) and len(sides.training) + len(sides.held_out) == 12
    environment = made.make()
    assert isinstance(environment, RunsPrograms) and environment.limits.calls == 64
    (start, held_out) = environment.reset_many([1, 1_000_000])
    assert start.goal == sides.training[1].text and held_out.goal == sides.held_out[0].text
    assert start.goal.startswith("1 and 0.") or start.goal.startswith("2 and 0."), "not what the system is told"
    monkeypatch.setenv("OPENAI_API_KEY", "a key of mine")
    program = environment.program(0, folder)
    *_, play, spec = program.command
    assert Path(play).name == "play.py" and json.loads(spec)["index"] == sides.training[1].index
    assert json.loads(program.variables["CRL_OUTSIDE"])["OPENAI_API_KEY"] == "a key of mine"
    assert made.data_files() == {"id": [folder / "sums.py"]}, "a changed environment is another experiment"
    assert len(next(iter(made.outside_rows())).rows) == 12
    spoiled = {**json.loads(spec), "digest": "0" * 64}
    given = {**os.environ, **program.variables, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    done = subprocess.run([sys.executable, play, json.dumps(spoiled)], env=given, capture_output=True, text=True)
    assert done.returncode == 1 and "the data set is another one now" in done.stderr


def test_its_evaluation_split_is_held_out(folder: Path) -> None:
    made = config(args={"train": 4, "evaluation": 3})
    sides = made.sides()
    assert [(each.split, each.index) for each in sides.training] == [("train", at) for at in range(4)]
    assert [each.split for each in sides.held_out] == ["eval"] * 3, "their answers are the same, their prompts are not"
    whole = config(args={"train": 4, "evaluation": 3}, held_out_from=None)
    assert len(whole.sides().training) == 4 and whole.held_out_levels is None


def test_what_a_rubric_said_is_the_reward(folder: Path) -> None:
    environment = config(held_out_from=None).make()
    environment.reset_many([0])
    for reward, success in ((0.75, True), (0.5, False)):
        (folder / OUTCOME).write_text(json.dumps({"reward": reward, "parts": {"right": 1.0, "turns": 2.0}}))
        step = environment.outcome(0, [], folder, 0)
        assert (step.reward, step.success, step.done) == (reward, success, True)
        assert step.reward_parts == {"right": 1.0, "turns": 2.0}
        assert step.stop_reason is (StopReason.success if success else StopReason.failure)
    stricter = config(held_out_from=None, success_at=2.0).make()
    stricter.reset_many([0])
    (folder / OUTCOME).write_text(json.dumps({"reward": 1.5, "parts": {}}))
    assert not stricter.outcome(0, [], folder, 0).success


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"id": "nowhere"}, "No module named 'nowhere'"),
        ({"args": {"groups": True}}, "compares the episodes of a group"),
        ({"args": {"train": 0}}, "hold no row"),
        ({"args": {"colour": 1}}, "colour"),
    ],
)
def test_what_cannot_be_played_is_refused(folder: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        config(**changes).make()


def test_a_missing_interpreter_is_refused_with_the_command_that_sets_it_up(
    folder: Path,
) -> None:
    with pytest.raises(BadInput, match=r"\.venv-verifiers/bin/python cannot be started") as refused:
        VerifiersConfig(id="sums").make()
    assert "pip install verifiers==0.3.1" in str(refused.value.next_step)
    (folder / "standin" / "verifiers.py").write_text("")  # as 0.4 has it
    with pytest.raises(BadInput, match=r"pip install verifiers==0\.3\.1"):
        config(args={"train": 5}).make()


def test_it_is_a_program_that_nobody_steps(folder: Path) -> None:
    with pytest.raises(ValueError, match="a program that runs itself"):
        FamilyConfig(name="sums", environment=config(), workers=2)
    with pytest.raises(BadInput, match="an episode of verifiers is a program"):
        config(held_out_from=None).make().step_many({0: "x"})


def test_rows_are_told_apart_by_all_that_they_hold(folder: Path) -> None:
    row = {
        "example_id": 1,
        "prompt": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
        "answer": "x",
    }
    assert text_of(row) == "a\n\nb" and text_of({"prompt": "said"}) == "said"
    assert text_of({"prompt": [{"role": "system", "content": "alone"}]}) == "alone"
    assert digest_of({**row, "example_id": 7}) == digest_of(row) != digest_of({**row, "answer": "y"})
