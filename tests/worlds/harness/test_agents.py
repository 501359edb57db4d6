"""Agents of people as they are: two rounds each, killed in the middle of calls, resumed, verified."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from crl.audit.verify import verify
from crl.records import Distillation, Episode, Generation, Retrieval, Task, Turn
from crl.run.directory import RunDirectory
from tests.processes import wait_until
from tests.tiny_run import ROOT, command, crl, digests, environment, leftovers

HERE = Path(__file__).parent / "agents"
ROUNDS = 2
AGENTS = {"plain": "openai", "framework": "pydantic_ai", "shell": None}


@pytest.fixture(params=AGENTS)
def agent(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """An agent's name, and its experiment."""
    library = AGENTS[request.param]
    if library is not None and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    made = tmp_path / "agent.yaml"
    made.write_text((HERE / "experiment.yaml").read_text().replace("{agent}", request.param))
    (tmp_path / "prompts").symlink_to(ROOT / "conf" / "prompts")
    yield request.param, made


def started(file: Path) -> Counter[str]:
    """How often each program was started, by the folder it ran in."""
    return Counter(file.read_text().split()) if file.exists() else Counter()


def lines_of(parts: Path) -> list[str]:
    """What is kept of programs that have ended."""
    return [line for file in parts.glob("steps-*.jsonl") for line in file.read_text().splitlines()]


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a run and all of its engines at once."""
    victims = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    workers = [each for each in victims if "crl" in " ".join(each.cmdline())]
    for each in workers:
        each.send_signal(signal.SIGSTOP)
    for each in workers:
        each.kill()
    process.wait()


@pytest.mark.slow
def test_two_rounds_killed_in_the_middle_of_calls(agent: tuple[str, Path], tmp_path: Path) -> None:
    name, experiment = agent
    arguments = ["train", str(experiment), "--rounds", str(ROUNDS), "--no-prefect"]
    crl(tmp_path / "whole", *arguments)
    expected = digests(tmp_path / "whole" / "agent")
    runs, path = tmp_path / "runs", tmp_path / "runs" / "agent"
    for number in range(1, ROUNDS + 1):
        starts = tmp_path / f"starts-{number}"
        with (tmp_path / "output").open("ab") as output:
            process = subprocess.Popen(
                command(*(arguments if number == 1 else ["resume", str(path)])), cwd=ROOT, stdout=output,
                stderr=output, env=environment(runs, {"CRL_TEST_STARTS": str(starts)}),
            )  # fmt: skip
        parts = path / "rounds" / f"{number:04d}" / ".parts-collect"

        wait_until(
            lambda parts=parts, process=process: len(lines_of(parts)) >= 4 or process.poll() is not None,
            "some programs of the wave have ended", every=0.02,
        )  # fmt: skip
        assert process.poll() is None, (tmp_path / "output").read_text()[-3000:]
        end(process)
        ended = lines_of(parts)
        assert 4 <= len(ended) < 16 and f"{number:04d}/collect" not in digests(path), "in the middle"
        starts_before = started(starts)
        assert len([each for each in starts_before if each.startswith(f"r{number:04d}")]) == 16, "16 at once"
        again = tmp_path / f"again-{number}"
        wait_until(lambda: not living(), "the killed run's programs have ended")
    crl(runs, "resume", str(path), extra={"CRL_TEST_STARTS": str(again)})
    mine = {key for key in started(again) if key.startswith("r0002")}
    assert len(mine) == 16 - len(ended) and all(started(again)[key] == 1 for key in mine), (
        "what had ended is not started"
    )
    assert digests(path) == expected
    assert verify(path) == [] and leftovers(path) == [] and not list(path.rglob("steps-*"))
    check_rows(path, name)
    shutil.rmtree(path)


def living() -> list[psutil.Process]:
    """Programs of agents that run."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(HERE) in word for word in process.info["cmdline"] or []):
            found.append(process)
    return found


def check_rows(path: Path, name: str) -> None:
    """What the text that a guided call read was; every call is in the extractor's prompt."""
    run = RunDirectory.open(path)

    def rows(kind: type, stage: str, number: int = 2) -> list:
        from crl.records import rows_of

        return rows_of(kind, run.read(number, stage, kind))

    episodes, turns, records = rows(Episode, "collect"), rows(Turn, "collect"), rows(Generation, "collect")
    by_id = {record.generation_id: record for record in records}
    for episode in episodes:
        prompts = [by_id[each].prompt for each in episode.generation_ids]
        for experience in episode.experiences:
            assert all(experience in prompt for prompt in prompts)
        assert episode.error is None and episode.turns == int(episode.goal.split()[0])
    assert len(rows(Task, "plan")) == 16 and isinstance(rows(Retrieval, "plan"), list)
    distilled = {row.episode_id: row for row in rows(Distillation, "distill")}
    written = {record.generation_id: record for record in rows(Generation, "distill")}
    for episode in episodes:
        prompt = written[distilled[episode.episode_id].generation_id].prompt
        mine = [turn for turn in turns if turn.episode_id == episode.episode_id]
        assert all(f"Turn {turn.turn + 1}:" in prompt for turn in mine) and episode.goal in prompt


@pytest.mark.slow
def test_it_is_checked_before_any_work(tmp_path: Path) -> None:
    text = (HERE / "experiment.yaml").read_text().replace("{agent}", "shell")
    for change, said in [
        (("bank: {capacity: 64}", "bank: {capacity: 64}\n    warm_start: {actor_episodes: 8}"), "step by step"),
        (("action_format: word}", "action_format: word, search_and_ask: {}}"), "between steps"),
        (("sampling: {max_new_tokens: 8}", "sampling: {max_new_tokens: 8, constrain: actions}"), "names no actions"),
        (("groups: 4", "groups: 4\n      workers: 2"), "a program that runs itself"),
        (("success_at: 0.2", "success_at: 0.2\n        max_turns: 3"), "max_turns"),
        (("shell.py", "nothing.py"), ""),
        (("rewards:reward", "rewards:nothing"), "cannot be imported"),
        (("tasks.jsonl", "nowhere.jsonl"), "there is no file"),
    ]:
        (tmp_path / "agent.yaml").write_text(text.replace(*change))
        if not (tmp_path / "prompts").exists():
            (tmp_path / "prompts").symlink_to(ROOT / "conf" / "prompts")
        if said:
            done = crl(tmp_path / "runs", "doctor", str(tmp_path / "agent.yaml"), code=2)
            assert said in done.stdout + done.stderr, change
    assert os.access(HERE / "tasks.jsonl", os.R_OK)
