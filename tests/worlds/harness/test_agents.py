"""Agents of people as they are: two rounds each, killed in the middle of calls, resumed, verified."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from crl.audit.verify import verify
from crl.config import RoleConfig
from crl.config.load import load_experiment
from crl.errors import BadInput
from crl.policies import load_policy, resolve_model
from crl.records import Distillation, Episode, Generation, Turn, Verdict, rows_of
from crl.run.directory import RunDirectory
from tests.processes import wait_until
from tests.recipes.bank_from_chats.test_bank_build import build, experiment, records
from tests.scored import sequence_logprobs
from tests.tiny_run import ROOT, command, crl, crl_here, digests, environment, leftovers
from tests.worlds.openenv.test_openenv_rounds import installed

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent / "agents"
ROUNDS = 2
AGENTS = {"plain": ("openai", "openai"), "framework": ("pydantic_ai", "pydantic-ai-slim[openai]"), "shell": None}
"""By the name of an agent, the module that it imports, and what to install for it."""


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a bank of a few experiences: what the tiny model writes is none."""
    folder = tmp_path_factory.mktemp("bank")
    return build(folder / "runs", experiment(folder, records())).run.path


@pytest.fixture(params=AGENTS)
def agent(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """An agent's name, and its experiment. What it imports may be in an interpreter of its own."""
    needs, python = AGENTS[request.param], "python"
    if needs is not None and importlib.util.find_spec(needs[0]) is None:
        python = str(installed(tmp_path / "venv", "-c", str(ROOT / "constraints.txt"), needs[1]))
    made = tmp_path / "agent.yaml"
    text = (HERE / "experiment.yaml").read_text().replace("[python,", f"[{python},")
    made.write_text(text.replace("{agent}", request.param))
    (tmp_path / "prompts").symlink_to(ROOT / "conf" / "prompts")
    return request.param, made


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


def test_two_rounds_killed_in_the_middle_of_calls(agent: tuple[str, Path], bank: Path, tmp_path: Path) -> None:
    name, made = agent
    arguments = ["train", str(made), "--rounds", str(ROUNDS), "--no-prefect"]
    for runs in (tmp_path / "runs", tmp_path / "whole"):
        crl_here(runs, "bank", "import", made, bank, "--family", "lake=sums")
    runs, path = tmp_path / "runs", tmp_path / "runs" / "agent"
    before, again = tmp_path / "before", tmp_path / "again"
    with (tmp_path / "output").open("ab") as output:
        process = subprocess.Popen(
            command(*arguments), cwd=ROOT, stdout=output, stderr=output,
            env=environment(runs, {"CRL_TEST_STARTS": str(before)}),
        )  # fmt: skip
    parts = path / "rounds" / "0001" / ".parts-collect"
    wait_until(
        lambda: len(lines_of(parts)) >= 4 or process.poll() is not None, "some of the wave have ended", every=0.02
    )
    assert process.poll() is None, (tmp_path / "output").read_text()[-3000:]
    end(process)
    ended = {json.loads(line)["episode"] for line in lines_of(parts)}
    assert 4 <= len(ended) < 16 and "0001/collect" not in digests(path), "in the middle"
    assert len(started(before)) == 16, "16 at once"
    wait_until(lambda: not living(), "the killed run's programs have ended")
    crl(runs, "resume", str(path), extra={"CRL_TEST_STARTS": str(again)})
    first = {key for key in started(again) if key.startswith("r0001")}
    assert first == set(started(before)) - ended, "what had ended is not started again"
    assert set(started(again).values()) == {1} and len(started(again)) == len(first) + 16
    assert verify(path) == [] and leftovers(path) == [] and not list(path.rglob("steps-*"))
    for number in range(1, ROUNDS + 1):
        check_rows(path, number)
    if name != "shell":
        crl(tmp_path / "whole", *arguments)
        assert digests(path) == digests(tmp_path / "whole" / "agent")


def living() -> list[psutil.Process]:
    """Programs of agents that run."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(HERE) in word for word in process.info["cmdline"] or []):
            found.append(process)
    return found


def check_rows(path: Path, number: int) -> None:
    """Log-probabilities are those of teacher forcing; guided calls read the experience that the record names; every
    call is in the extractor's prompt."""
    run = RunDirectory.open(path)

    def rows(kind: Any, stage: str) -> list[Any]:
        return rows_of(kind, run.read(number, stage, kind))

    episodes, turns, records = rows(Episode, "collect"), rows(Turn, "collect"), rows(Generation, "collect")
    by_id = {record.generation_id: record for record in records}
    checkpoint = None if number == 1 else path / "rounds" / f"{number - 1:04d}" / "update_actor" / "checkpoint"
    role = RoleConfig(model="tiny")
    policy = load_policy(role, resolve_model("tiny").path, checkpoint, threads=1)
    assert len(episodes) == 16 and {episode.guided for episode in episodes} == {True, False}
    for episode in episodes:
        assert episode.error is None and episode.turns == int(episode.goal.split()[0])
        for record in (by_id[each] for each in episode.generation_ids):
            shown = policy.tokenizer.decode(record.token_ids)
            assert bool(episode.experiences) is episode.guided is ("Advice:" in shown) is ("Advice:" in record.prompt)
            for text in episode.experiences:
                assert text in shown and text in record.prompt
    forced = sequence_logprobs(policy.model, [record.token_ids for record in records], 1.0, batch=4)
    for record, expected in zip(records, forced, strict=True):
        drawn = np.array(record.loss_mask, bool)
        assert np.abs(np.array(record.logprobs) - expected)[drawn].max() < 1e-4
    written = {record.generation_id: record.prompt for record in rows(Generation, "distill")}
    prompts = {row.episode_id: written[row.generation_id] for row in rows(Distillation, "distill")}
    for turn in turns:
        prompt = prompts[turn.episode_id]
        assert f"Turn {turn.turn + 1}:" in prompt and (turn.action or "").strip() in prompt


def test_a_judge_may_say_what_a_program_is_worth(bank: Path, tmp_path: Path) -> None:
    text = (HERE / "experiment.yaml").read_text().replace("{agent}", "shell").replace("groups: 4", "groups: 2")
    rubric = "      reward: {judge: Right answers are good., mode: group}\n"
    text = text.replace("        reward: tests.worlds.harness.agents.rewards:reward\n        success_at: 0.2\n", "")
    text = text.replace("      groups: 2\n", f"      groups: 2\n{rubric}").replace(
        "  rollout:", "    judge: {model: tiny}\n  rollout:"
    )
    (tmp_path / "agent.yaml").write_text(text)
    (tmp_path / "prompts").symlink_to(ROOT / "conf" / "prompts")
    runs = tmp_path / "runs"
    crl_here(runs, "bank", "import", tmp_path / "agent.yaml", bank, "--family", "lake=sums")
    crl_here(runs, "train", tmp_path / "agent.yaml", "--rounds", "1", "--no-prefect")
    run = RunDirectory.open(runs / "agent")
    episodes = rows_of(Episode, run.read(1, "collect", Episode))
    assert len(episodes) == 8 and any(episode.guided for episode in episodes)
    assert all(row.error is None and row.reward_names == ["judge"] and 0 <= row.reward <= 1 for row in episodes)
    verdicts = rows_of(Verdict, run.read(1, "collect", Verdict))
    assert {each for row in verdicts for each in row.episode_ids} == {row.episode_id for row in episodes}
    assert {row.reason_code for row in verdicts} == {"ok"}


def test_it_is_checked_before_any_work(tmp_path: Path) -> None:
    text = (HERE / "experiment.yaml").read_text().replace("{agent}", "shell")
    (tmp_path / "prompts").symlink_to(ROOT / "conf" / "prompts")
    for change, said in [
        (("bank: {capacity: 64}", "bank: {capacity: 64}\n    warm_start: {actor_episodes: 8}"), "step by step"),
        (("action_format: word}", "action_format: word, search_and_ask: {}}"), "between steps"),
        (("sampling: {max_new_tokens: 8}", "sampling: {max_new_tokens: 8, constrain: actions}"), "names no actions"),
        (("groups: 4", "groups: 4\n      workers: 2"), "a program that runs itself"),
        (("success_at: 0.2", "success_at: 0.2\n        max_turns: 3"), "max_turns"),
        (("model: tiny", "model: tiny\n      history: {window: 2}"), "their own histories"),
        (("rewards:reward", "rewards:nothing"), "cannot be imported"),
        (("tasks.jsonl", "nowhere.jsonl"), "there is no file"),
    ]:
        (tmp_path / "agent.yaml").write_text(text.replace(*change, 1))
        done = crl_here(tmp_path / "runs", "doctor", str(tmp_path / "agent.yaml"), code=2)
        assert said in done.stdout + done.stderr, change
    program = {"kind": "harness", "command": ["python"], "tasks": "nowhere.jsonl", "reward": "nothing:here"}
    with pytest.raises(BadInput, match="an experience model stands for an environment's steps"):
        load_experiment(ROOT / "conf/dreamgym_tiny.yaml", {"method.families.0.environment": program})
