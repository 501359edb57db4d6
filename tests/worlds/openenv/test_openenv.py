"""OpenEnv servers as environments: by a stand-in that speaks their protocol (standin.py)."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import ValidationError

from crl.config import FamilyConfig
from crl.envs import check_environment, make_environment
from crl.envs.asynchronous import run
from crl.errors import BadInput, EnvironmentBroken
from crl.protocols import FreeText, Step, StopReason, ToolCalls
from crl.worlds.openenv import OpenEnvConfig
from crl.worlds.openenv.forms import Unreadable, form_of, shown
from crl.worlds.openenv.servers import borrowed
from tests.worlds.openenv import standin

HERE = Path(__file__).parent
PROGRAM = HERE / "standin.py"


def command(kind: str) -> str:
    return f"{sys.executable} {PROGRAM} {kind} {{port}}"


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    """Servers that run, by their kinds."""
    kinds = ("guess", "moves", "listed", "several", "tools", "slow")
    processes = {
        kind: subprocess.Popen([sys.executable, PROGRAM, kind, "0"], stdout=subprocess.PIPE, text=True)
        for kind in kinds
    }
    try:
        yield {
            kind: f"http://127.0.0.1:{int(process.stdout.readline())}"  # type: ignore[union-attr]
            for kind, process in processes.items()
        }
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]


def made(address: str, **settings: Any) -> Any:
    return closing(OpenEnvConfig(address=address, **settings).make())


def one(environment: Any, action: str | None, slot: int = 0) -> Step:
    step: Step = environment.step_many({slot: action})[slot]
    return step


def test_rewards_are_those_of_the_server_step_by_step(addresses: dict[str, str]) -> None:
    seeds = list(range(100))
    with made(addresses["guess"]) as environment:
        starts = environment.reset_many(seeds[:50]) + environment.reset_many(seeds[50:])
        assert starts[0].goal == "Find the number from 0 to 9." and isinstance(starts[0].actions, FreeText)
        for first in (0, 50):
            environment.reset_many(seeds[first : first + 50])
            games = {slot: standin.Guess() for slot in range(50)}
            for slot, game in games.items():
                game.reset(seeds[first + slot])
            total = dict.fromkeys(games, 0.0)
            live = dict(games)
            for guess in range(10):
                steps = environment.step_many({slot: str(guess) for slot in live})
                for slot, step in steps.items():
                    text, reward, done = games[slot].step(guess)
                    total[slot] += reward or 0.0
                    assert step.turn_reward == reward and step.reward == pytest.approx(total[slot])
                    assert step.done is done and step.success is done and step.observation.startswith(text["text"])
                live = {slot: game for slot, game in live.items() if not steps[slot].done}
            assert not live
    with made(addresses["guess"], reward="last", success_at=2.0) as environment:
        environment.reset_many([0])
        game = standin.Guess()
        game.reset(0)
        assert one(environment, str(game.number - 1)).reward == 0.1
        last = one(environment, str(game.number))
        assert last.reward == 1.0 and last.turn_reward is None and last.stop_reason is StopReason.failure


def test_actions_have_the_form_of_their_type(addresses: dict[str, str]) -> None:
    with made(addresses["moves"], goal="Go east.", max_turns=3) as environment:
        (start,) = environment.reset_many([4])
        at = standin.Moves().reset(4)["at"]
        assert (
            start.actions == ("west", "east") and start.goal == "Go east." and start.observation == f"at: {at}\nof: 4"
        )
        assert not one(environment, "up").legal and one(environment, "east").observation == f"at: {at + 1}\nof: 4"
        assert one(environment, None).stop_reason is StopReason.turn_limit
        with pytest.raises(RuntimeError, match="slot 0 is done"):
            one(environment, "east")
    with made(addresses["listed"], legal_actions="legal", observation=["at"]) as environment:
        (start,) = environment.reset_many([4])
        assert start.actions == ("east",) and start.observation == f"at: {at}"
        assert one(environment, "east").actions == ("west", "east")
    with made(addresses["several"]) as environment:
        (start,) = environment.reset_many([4])
        assert isinstance(start.actions, ToolCalls) and start.actions.tools[0].name == "GuessAction"
        wrong = one(environment, '{"arguments": {"guess": "x", "z": 1}, "name": "GuessAction"}')
        assert not wrong.legal and "guess: Input should be a valid integer; z: Extra inputs" in wrong.feedback
        assert "no tool f" in one(environment, '{"arguments": {}, "name": "f"}').feedback
        assert one(environment, '{"arguments": {"guess": 99}, "name": "GuessAction"}').observation == "It is lower."
    with made(addresses["tools"]) as environment:
        (start,) = environment.reset_many([4])
        assert isinstance(start.actions, ToolCalls) and start.actions.tools[0].description == "Guess the number."
        assert one(environment, '{"arguments": {"guess": 99}, "name": "guess"}').observation == "It is lower."
    with made(addresses["guess"]) as environment:
        environment.reset_many([4])
        for words, legal in (("I guess 99.", True), ("1 or 2", False), ("1.5", False), ("", False), ("9" * 99, False)):
            assert one(environment, words).legal is legal, words


@pytest.mark.parametrize(
    ("inner", "actions"),
    [
        ({"type": "boolean"}, ("true", "false")),
        ({"type": "integer", "minimum": 1, "exclusiveMaximum": 4}, ("1", "2", "3")),
        ({"enum": [1, "two"]}, ("1", "two")),
        ({"type": "integer", "minimum": 0}, FreeText("the x, and nothing else (a whole number)")),
        ({"type": "integer", "minimum": 0, "maximum": 1e9}, FreeText("the x, and nothing else (a whole number)")),
        ({"type": "number", "description": "How far"}, FreeText("How far (a number)")),
        ({"type": "string", "description": "A word"}, FreeText("A word")),
    ],
)
def test_one_field_is_written_alone(inner: dict[str, Any], actions: Any) -> None:
    form = form_of({"title": "A", "properties": {"x": inner, "metadata": {}}}, None)
    assert form.actions == actions
    if isinstance(actions, tuple):
        assert [form.action(each)["x"] for each in actions] == standin_values(inner)


def standin_values(inner: dict[str, Any]) -> list[Any]:
    return list(inner["enum"]) if "enum" in inner else [1, 2, 3] if "minimum" in inner else [True, False]


def test_other_types_are_tool_calls_and_what_refers_to_itself_ends() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    form = form_of({"title": "A b", "properties": {"node": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": node}}, None)
    assert isinstance(form.actions, ToolCalls) and form.actions.tools[0].name == "A_b"
    assert isinstance(form_of({"properties": {"x": {"enum": ["a", "A"]}}}, None).actions, ToolCalls)
    assert form_of({"title": "Wait", "properties": {}}, None).actions == ("Wait",)
    with pytest.raises(Unreadable):
        form.action('{"arguments": {}, "name": "other"}')
    assert shown({"a": "x", "b": [1], "metadata": {}, "c": None}, None) == "a: x\nb: [1]"


def running() -> set[int]:
    """Stand-ins that run."""
    return {each.pid for each in psutil.Process().children(recursive=True) if str(PROGRAM) in each.cmdline()}


def test_a_server_that_ignores_its_seed_is_refused() -> None:
    before = running()
    for kind, where in (("unseeded", "at the start"), ("hidden", "turn 1")):
        with pytest.raises(BadInput, match=f"ignores its seed.*{where}"):
            check_environment(OpenEnvConfig(command=command(kind)))
    check_environment(OpenEnvConfig(command=command("guess")))
    assert running() == before, "what was started has ended"


def test_what_breaks_costs_its_own_episode() -> None:
    with closing(OpenEnvConfig(command=command("odd"), answer_seconds=1.0).make()) as environment:
        environment.reset_many(list(range(5)))
        steps = environment.step_many(dict(enumerate(["13", "14", "16", "17", "99"])))
        assert [step.error for step in steps.values()] == [
            "environment_server_error", "environment_time_limit", "environment_server_error", "environment_died", None,
        ]  # fmt: skip
        assert "unlucky" in str(steps[0].details) and "within 1 s" in str(steps[1].details)
        assert one(environment, "99", slot=4).observation == "It is lower."
        starts = environment.reset_many(list(range(5)))
        assert not any(start.error for start in starts)
        died = environment.step_many({0: "99", 1: "15"})
        assert died[1].error == "environment_died" and "the server gives up" in str(died[1].details)
        assert one(environment, "99", slot=2).error == "environment_died"
        assert not any(start.error for start in environment.reset_many([1, 2])), "another one is started"
        run(environment._sessions[0].connection.close())
        assert not any(start.error for start in environment.reset_many([1, 2])), (
            "a session that was closed is opened anew"
        )
        assert one(environment, "99").observation == "It is lower."


def test_sixteen_slots_wait_side_by_side(addresses: dict[str, str]) -> None:
    with made(addresses["slow"], answer_seconds=60) as environment:
        seeds = list(range(16))
        environment._servers = borrowed(environment.config.launch())
        environment._servers.seeded = True  # the trial plays one slot, which would wait for fifteen more
        environment.reset_many(seeds)
        steps = environment.step_many(dict.fromkeys(seeds, "99"))
        assert all(step.observation == "It is lower." for step in steps.values())


def test_a_server_for_few_episodes_gets_others_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_CAPACITY", "2")
    with closing(OpenEnvConfig(command=command("guess"), servers=2).make()) as environment:
        starts = environment.reset_many(list(range(5)))
        assert [start.error for start in starts].count("environment_server_full") == 1
        assert "max_concurrent_envs" in str(next(start.details for start in starts if start.error))
        assert len(environment._servers._servers) == 2
        assert not any(start.error for start in environment.reset_many(list(range(4))))


def test_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="pip install openenv"):
        check_environment(OpenEnvConfig(command="nowhere/python server.py {port}"))
    lacking = tmp_path / "server.py"
    lacking.write_text("import openenv_that_there_is_not")
    with pytest.raises(BadInput, match=r"(?s)exit code 1.*openenv_that.*pip install openenv"):
        check_environment(OpenEnvConfig(command=f"{sys.executable} {lacking} {{port}}"))
    with pytest.raises(EnvironmentBroken, match="does not answer"):
        check_environment(OpenEnvConfig(address="http://127.0.0.1:9", answer_seconds=0.2))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match="no program that runs containers"):
        check_environment(OpenEnvConfig(image="ours/line:1"))


def test_a_container_is_started_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`docker run … -p 127.0.0.1:PORT:8000 IMAGE`; what ran is removed by its name."""
    docker = tmp_path / "docker"
    docker.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n[ "$1" = run ] || exit 0\n'
        f'port=$(echo "$6" | cut -d: -f2)\nexec {sys.executable} {PROGRAM} "$7" "$port"\n'
    )
    docker.chmod(docker.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    check_environment(OpenEnvConfig(image="guess", port=8123))
    run, removed = (tmp_path / "asked").read_text().splitlines()
    assert run.startswith("run --rm --name crl-openenv-") and run.endswith(":8123 guess") and " -p 127.0.0.1:" in run
    assert removed == f"rm -f {run.split()[3]}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "found none"),
        ({"address": "http://a", "image": "b"}, "found image, address"),
        ({"command": "server"}, r"hold \{port\}"),
        ({"address": "http://a", "held_out_from": 5}, "held_out_from has to be null"),
        ({"address": "http://a", "reset": {"seed": 1}}, "may not hold seed"),
        ({"address": "ftp://a"}, "pattern"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        OpenEnvConfig(**settings)


def test_waves_of_one_process_share_a_server_and_threads_may_step_apart(addresses: dict[str, str]) -> None:
    family = {
        "name": "guess", "workers": 2, "step_time_limit_seconds": 30,
        "environment": {"kind": "openenv", "address": addresses["guess"]},
    }  # fmt: skip
    environment = make_environment(FamilyConfig.model_validate(family))
    with closing(environment):
        assert not any(start.error for start in environment.reset_many([1, 2, 3]))
        steps = environment.step_many(dict.fromkeys(range(3), "99"))
        assert all(step.observation == "It is lower." for step in steps.values())
    with made(addresses["guess"]) as first, made(addresses["guess"]) as second:
        first.reset_many([1])
        second.reset_many([1])
        assert first._servers is second._servers
        results: list[Step] = []
        threads = [
            threading.Thread(target=lambda wave=wave: results.append(one(wave, "99"))) for wave in (first, second)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 2
