"""`kind: harness`: what it takes as a program, its tasks, and what a reward function is given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from crl.cli.program_check import check_programs
from crl.config import FamilyConfig
from crl.errors import BadInput
from crl.protocols import RunsPrograms, StopReason
from crl.worlds.harness import HarnessConfig

REWARDS = """
async def later(task, answer): return {"right": float(answer), "style": 0.25}
def number(messages, exit_code, **columns): return len(messages) + exit_code + len(columns)
def asks(colour): return 0
def wrong(task): return "much"
def forgets(task): pass
def half(task): return {"right": None}
def nothing_earned(task): return {}
broken = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [{"task": f"Task {number} 'ü'", "answer": number % 2, "more": [number]} for number in range(40)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, [*rows, rows[0]])))
    (tmp_path / "rewarding.py").write_text(REWARDS)
    (tmp_path / "agent.py").write_text("import os, sys; print(sys.argv[1:], os.environ['CRL_TASK'])")
    (tmp_path / "calling.py").write_text(
        "def main(task): print(repr(task))\nasync def later(task): print('later', repr(task))"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("rewarding", "calling"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def config(**changes: Any) -> HarnessConfig:
    given = {"command": ["python", "agent.py", "--task={task}", "x"], "tasks": "tasks.jsonl"}
    return HarnessConfig(**{**given, "reward": "rewarding:later", **changes})


def run(environment: Any, slot: int, folder: Path) -> str:
    (folder / "empty").mkdir(exist_ok=True)
    program = environment.program(slot, folder / "empty")
    done = subprocess.run(
        program.command, cwd=folder / "empty", env=dict(program.variables), capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_program_is_given_its_task(folder: Path) -> None:
    environment = config().make()
    assert isinstance(environment, RunsPrograms)
    start, other = environment.reset_many([3, 4])
    assert start.goal != other.goal and start.goal.startswith("Task") and start.observation == ""
    assert environment.reset_many([3, 4]) == [start, other]
    assert run(environment, 0, folder) == f"{[f'--task={start.goal}', 'x']} {start.goal}", "its file is found"
    for name, said in (("main", ""), ("later", "later ")):
        called = config(command=f"calling:{name}").make()
        called.reset_many([3])
        assert run(called, 0, folder) == said + repr(start.goal), "a function may be async"
    with pytest.raises(BadInput, match="cannot be stepped"):
        environment.step_many({0: "x"})


def test_tasks_are_on_one_side_whatever_is_added(folder: Path) -> None:
    sides = config().sides()
    assert 0 < len(sides.held_out) < 12 and len(sides.training) + len(sides.held_out) == 40, "equal tasks count once"
    assert config().held_out_levels == len(sides.held_out)
    with (folder / "tasks.jsonl").open("a") as file:
        file.write('\n{"task": "One more.", "answer": 1, "more": []}')
    more = config().sides()
    assert {task.text for task in sides.held_out} <= {task.text for task in more.held_out}
    assert set(config().data_files()) == {"tasks.jsonl", "agent.py"}, "a changed agent is another experiment"
    assert len(next(iter(config().outside_rows())).rows) == 41


def test_a_reward_is_a_number_or_its_parts(folder: Path) -> None:
    environment = config(success_at=1.25).make()
    environment.reset_many([0])
    step = environment.outcome(0, [], folder, 0)
    right = environment.tasks[0].columns["answer"]
    assert step.reward == right + 0.25 and step.reward_parts == {"right": float(right), "style": 0.25}
    assert step.success is (right == 1) and step.done
    environment = config(reward="rewarding:number").make()
    environment.reset_many([0])
    step = environment.outcome(0, [{}, {}], folder, 3)
    assert (step.reward, step.reward_parts) == (9.0, None), "two messages, code 3, and four other values"
    assert step.stop_reason is StopReason.success and "9" in step.observation
    environment = config(reward="rewarding:wrong").make()
    environment.reset_many([0])
    with pytest.raises(ValueError, match="much"):
        environment.outcome(0, [], folder, 0)


@pytest.mark.parametrize(
    ("name", "said"),
    [("forgets", "returned None: a number or"), ("half", "'right': None"), ("nothing_earned", "returned {}")],
)
def test_what_is_no_reward_is_named(folder: Path, name: str, said: str) -> None:
    environment = config(reward=f"rewarding:{name}").make()
    environment.reset_many([0])
    with pytest.raises(TypeError, match=f"rewarding:{name}.*{said}"):
        environment.outcome(0, [], folder, 0)


def test_a_command_in_one_line_is_refused_with_the_list_to_write(folder: Path) -> None:
    with pytest.raises(ValidationError, match=r"as a list: \[python, agent\.py, 'a b'\]"):
        config(command="python agent.py 'a b'")


def test_a_reward_function_finds_nothing_to_wait_for(folder: Path) -> None:
    made = folder / "made"
    (made / "in").mkdir(parents=True)
    os.mkfifo(made / "in/answer.txt")
    (made / "link").symlink_to("in/kept")
    (made / "in/kept").write_text("x")
    (made / "out").symlink_to(folder / "tasks.jsonl")
    environment = config().make()
    environment.reset_many([0])
    environment.outcome(0, [], made, 0)
    assert sorted(path.name for path in made.rglob("*")) == ["in", "kept", "link", "out"]
    environment._isolated = object()
    environment.outcome(0, [], made, 0)
    assert sorted(path.name for path in made.rglob("*")) == ["in", "kept", "link"], (
        "what it could not read, it gives not"
    )


def test_a_judge_may_stand_in_for_a_reward_function(folder: Path) -> None:
    with pytest.raises(ValidationError, match="nothing says what an episode is worth"):
        FamilyConfig(name="sums", environment=config(reward=None))
    judged = FamilyConfig(name="sums", environment=config(reward=None), reward={"judge": "A good answer is short."})
    environment = judged.environment.make()
    environment.reset_many([0])
    assert environment.outcome(0, [], folder, 0).reward == 0.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tasks": "nowhere.jsonl"}, "there is no file"),
        ({"prompt": "question"}, "no column 'question'; its columns are task, answer, more"),
        ({"reward": "rewarding:asks"}, "asks for 'colour'"),
        ({"reward": "rewarding:broken"}, "is 3"),
        ({"reward": "rewarding:nothing"}, "cannot be imported"),
        ({"command": "calling:nothing"}, "cannot be imported"),
        ({"command": ["no-such-program-here"]}, "no program"),
        ({"test_size": 1e-9}, "0 to evaluate on"),
    ],
)
def test_what_cannot_be_used_is_refused(folder: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        config(**changes).make()


@pytest.mark.parametrize("row", [{"task": ""}, {"task": 3}, 7, {"task": "a\x00b"}, {"task": "x" * 100_001}])
def test_rows_that_are_no_tasks_are_refused_with_their_line(folder: Path, row: Any) -> None:
    (folder / "tasks.jsonl").write_text(f'{{"task": "One."}}\n{json.dumps(row)}\n')
    with pytest.raises(BadInput) as caught:
        config().make()
    assert "line 2" in str(caught.value)


@pytest.mark.parametrize("setting", [{"workers": 2}, {"isolate": True}, {"max_turns": 3}])
def test_settings_about_steps_are_refused(folder: Path, setting: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="a program that runs itself"):
        FamilyConfig(name="sums", environment=config(), **setting)


ASKS = """
import json, os, random, threading, urllib.request
def ask(text):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    key = "Bearer " + os.environ["OPENAI_API_KEY"]
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    urllib.request.urlopen(urllib.request.Request(url, body, {"authorization": key}), timeout=300).read()
"""
SEVERAL = """
both = [threading.Thread(target=ask, args=(text,)) for text in "ab"]
for thread in both: thread.start()
for thread in both: thread.join()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "outcomes", "said"),
    [
        ("ask(os.environ['CRL_TASK'])", ["ok", "ok"], "4 programs ended, after 4 calls"),
        ("ask(str(random.random()))", ["ok", "note"], "acted differently the second time"),
        (SEVERAL, ["ok", "note"], "several calls open"),
        ("pass", ["ok", "failed", "ok"], "no program made a call"),
        ("raise ValueError('in here')", ["failed", "ok"], "in here"),
    ],
)  # fmt: skip
def test_programs_are_checked_with_the_tiny_model(folder: Path, code: str, outcomes: list[str], said: str) -> None:
    (folder / "agent.py").write_text(ASKS + code)
    family = FamilyConfig(name="sums", environment=config(command=["python", "agent.py"]))
    found = check_programs(family, 60.0)
    assert [finding.outcome for finding in found] == outcomes
    assert any(said in finding.message for finding in found)
