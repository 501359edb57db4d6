"""verifiers itself, in an interpreter of its own: its classes are trained, killed and resumed; it is asked what it is
asked without us, and says of the same answers what it says without us."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from crl.audit.verify import verify
from crl.records import Episode, Task, Turn, rows_of
from crl.run.directory import RunDirectory
from crl.worlds.verifiers import VerifiersConfig
from crl.worlds.verifiers.environment import PLAY, SETUP
from tests.processes import wait_until
from tests.tiny_run import ROOT, command, crl, digests, environment, leftovers
from tests.worlds.harness.test_agents import end, lines_of, started
from tests.worlds.openenv.test_openenv_rounds import installed

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
KINDS = ("single", "multi", "tool", "stateful", "gym")
EACH = 100


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with verifiers: the one that CRL_TEST_VERIFIERS names, or a new one."""
    if given := os.environ.get("CRL_TEST_VERIFIERS"):
        return Path(given)
    return installed(tmp_path_factory.mktemp("verifiers") / "venv", SETUP.split()[-1], "reasoning-gym")


def own(python: Path, folder: Path, episodes: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """What verifiers says of episodes, without us and with `play.py`."""
    spec = {"folder": str(HERE), "play": str(PLAY), "out": str(folder / "own.json"), "episodes": list(episodes)}
    (folder / "spec.json").write_text(json.dumps(spec))
    done = subprocess.run(
        [python, HERE / "own.py", folder / "spec.json"], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads((folder / "own.json").read_text())
    return found


def call(number: int, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
    }


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def answers(kind: str, at: int) -> list[dict[str, Any]]:
    """What an actor says in the episode of a row: right, wrong, long, a call of a tool that is there or is not."""
    texts = [f"It is {at + at % 7}.", "I do not know. " * (at % 9 + 1), "<answer>RIGHT</answer>", "stop"]
    plain = [said(texts[(at + turn) % 4]) for turn in range(3)]
    if kind == "tool":
        plain[0] = [call(1, "add", f'{{"a": {at}, "b": 1}}'), call(2, "gone", "{}"), call(3, "add", '{"a": 1}')][at % 3]
    if kind == "stateful":
        plain[:2] = [call(turn, "remember", f'{{"number": {at + turn}}}') for turn in range(2)]
    return plain


def test_prompts_and_rewards_are_those_of_the_package(python: Path, tmp_path: Path) -> None:
    episodes = [(kind, "train", at, answers(kind, at)) for kind in KINDS for at in range(EACH)]
    found = own(python, tmp_path, episodes)
    for (kind, _, at, _), one in zip(episodes, found, strict=True):
        assert one["ours_asked"] == one["own_asked"] and one["ours_asked"], (kind, at)
        assert one["ours"].pop("error") is None and one["ours"] == one["own"], (kind, at)
    turns = Counter((kind, len(one["own_asked"])) for (kind, *_), one in zip(episodes, found, strict=True))
    assert turns["single", 1] == turns["gym", 1] == EACH and turns["stateful", 3] == EACH
    assert turns["multi", 3] and turns["tool", 2] == EACH
    rewards = defaultdict(set)
    for (kind, *_), one in zip(episodes, found, strict=True):
        rewards[kind].add(one["own"]["reward"])
        assert bool(one["own_asked"][0]["tools"]) is (kind in ("tool", "stateful"))
    assert all(len(each) > 1 for each in rewards.values()), rewards


def experiment(python: Path) -> dict[str, Any]:
    """Five families: each a class of verifiers."""
    made: dict[str, Any] = yaml.safe_load((HERE / "experiment.yaml").read_text())
    for kind in KINDS:
        settings = {
            "kind": "verifiers", "id": "tests.worlds.verifiers.kinds", "args": {"kind": kind}, "python": str(python),
            "call_seconds": 3600.0, "seconds": 3600.0, "success_at": 0.1,
        }  # fmt: skip
        seeds = {"start": 1_000_000, "count": 1}
        made["method"]["families"].append(
            {"name": kind, "environment": settings, "groups": 1, "evaluation_seeds": seeds}
        )
    return made


@pytest.fixture
def run(python: Path, tmp_path: Path) -> Iterator[Path]:
    """A run of two rounds that was killed in the middle of the second, and resumed."""
    (tmp_path / "classes.yaml").write_text(yaml.safe_dump(experiment(python)))
    (tmp_path / "prompts").symlink_to(ROOT / "conf" / "prompts")
    runs, path = tmp_path / "runs", tmp_path / "runs" / "classes"
    with (tmp_path / "output").open("ab") as output:
        process = subprocess.Popen(
            command("train", tmp_path / "classes.yaml", "--rounds", "2", "--no-prefect"), cwd=ROOT, stdout=output,
            stderr=output, env=environment(runs, {"CRL_TEST_STARTS": str(tmp_path / "starts-1")}),
        )  # fmt: skip
    parts = path / "rounds" / "0002" / ".parts-collect"
    wait_until(
        lambda: lines_of(parts) or process.poll() is not None, "a program of round 2 has ended", seconds=6000
    )  # fmt: skip
    assert process.poll() is None, (tmp_path / "output").read_text()[-3000:]
    end(process)
    assert "0002/collect" not in digests(path), "in the middle"
    wait_until(lambda: not living(), "the killed run's programs have ended")
    before = [line for line in lines_of(parts) if line]
    crl(runs, "resume", str(path), extra={"CRL_TEST_STARTS": str(tmp_path / "starts-2")})
    again = {name: count for name, count in started(tmp_path / "starts-2").items() if name.startswith("r0002")}
    assert set(again.values()) == {1} and len(again) <= 2 * len(KINDS) - len(before), "what had ended is not started"
    yield path


def living() -> list[psutil.Process]:
    return [each for each in psutil.process_iter(["cmdline"]) if str(PLAY) in (each.info["cmdline"] or [])]


def test_its_classes_train_two_rounds_are_killed_and_resumed(run: Path, python: Path, tmp_path: Path) -> None:
    assert verify(run) == [] and leftovers(run) == [] and not list(run.rglob("steps-*"))
    opened = RunDirectory.open(run)
    families = {family.name: family.environment for family in opened.method.families}
    episodes, replayed = [], []
    for number in (1, 2):
        tasks = {row.episode_id: row for row in rows_of(Task, opened.read(number, "plan", Task))}
        turns = defaultdict(list)
        for turn in rows_of(Turn, opened.read(number, "collect", Turn)):
            turns[turn.episode_id].append(turn)
        for episode in rows_of(Episode, opened.read(number, "collect", Episode)):
            assert episode.error is None, (episode.family, episode.error)
            made = families[episode.family]
            assert isinstance(made, VerifiersConfig)
            task = made.sides().of(tasks[episode.episode_id].environment_seed, made.held_out_from)
            assert episode.goal == task.text
            mine = sorted(turns[episode.episode_id], key=lambda turn: turn.turn)
            episodes.append((episode, mine))
            replayed.append((episode.family, task.split, task.index, [said(turn.action or "") for turn in mine]))
    assert Counter(episode.family for episode, _ in episodes) == dict.fromkeys(KINDS, 4)
    for (episode, mine), one in zip(episodes, own(python, tmp_path, replayed), strict=True):
        assert episode.reward == one["own"]["reward"], episode.family
        assert dict(zip(episode.reward_names, episode.reward_values, strict=True)) == one["own"]["parts"]
        assert len(one["own_asked"]) == len(mine)
        for turn, asked in zip(mine, one["own_asked"], strict=True):
            new = asked["messages"] if turn.turn == 0 else asked["messages"][-1:]
            assert turn.observation == "\n\n".join(f"[{each['role']}]\n{each['content']}" for each in new)


def test_what_the_package_has_not_is_refused(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from crl.errors import BadInput

    monkeypatch.chdir(HERE)
    for args, words in [({"kind": "nothing"}, "there is no nothing"), ({"kind": "groups"}, "episodes of a group")]:
        with pytest.raises(BadInput, match=words):
            VerifiersConfig(id="kinds", args=args, python=str(python)).make()
    one = VerifiersConfig(id="kinds", args={"kind": "one_split"}, python=str(python)).sides()
    assert len(one.training) + len(one.held_out) == 120 and {each.split for each in one.held_out} == {"train"}
