"""OpenEnv servers as environments: by a stand-in that speaks their protocol (standin.py)."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from pydantic import ValidationError

from crl.config import FamilyConfig, SamplingConfig
from crl.envs import check_environment, make_environment
from crl.envs.asynchronous import hold, run
from crl.envs.check.conduct import starting
from crl.errors import BadInput, CrlError, EnvironmentBroken
from crl.protocols import FreeText, Step, StopReason, ToolCalls
from crl.rollout.play import play_wave
from crl.worlds.openenv import OpenEnvConfig
from crl.worlds.openenv.forms import Refused, ServerFault, form_of, shown
from tests.unit.rollout.fakes import ScriptedPolicy, method, slots_of
from tests.worlds.openenv import standin

PROGRAM = Path(__file__).parent / "standin.py"


def command(kind: str, capacity: int = 64) -> str:
    return f"{sys.executable} {PROGRAM} {kind} {{port}} {capacity}"


@contextmanager
def server(kind: str, port: int = 0, capacity: int = 64) -> Iterator[str]:
    """A server that runs in this process, while the block does: its address."""
    address, end = hold(standin.served(kind, port, capacity))
    try:
        yield address
    finally:
        end()


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    """Servers that run, by their kinds."""
    with ExitStack() as stack:
        yield {kind: stack.enter_context(server(kind)) for kind in standin.KINDS}


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
    for kind, field in (("listed", "lawful"), ("listed", "at"), ("several", "legal")):
        with made(addresses[kind], legal_actions=field) as environment:
            assert "legal_actions lists no values" in str(environment.reset_many([4])[0].details)
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
        assert "whole number" in one(environment, "two").feedback
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
    form = form_of({"title": "A", "properties": {"x": inner, "metadata": {}}})
    assert form.actions == actions
    if isinstance(actions, tuple):
        assert [form.sent(each)["x"] for each in actions] == standin_values(inner)


def standin_values(inner: dict[str, Any]) -> list[Any]:
    return list(inner["enum"]) if "enum" in inner else [1, 2, 3] if "minimum" in inner else [True, False]


def test_other_types_are_tool_calls_and_what_refers_to_itself_ends() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    form = form_of({"title": "A b", "properties": {"node": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": node}})
    assert isinstance(form.actions, ToolCalls) and form.actions.tools[0].name == "A_b"
    assert "$ref" not in str(form.actions.tools[0].parameters)
    assert isinstance(form_of({"properties": {"x": {"enum": ["a", "A"]}}}).actions, ToolCalls)
    assert form_of({"title": "Wait", "properties": {}}).actions == ("Wait",)
    number = form_of({"properties": {"x": {"type": "integer"}, "kind": {"const": "move"}}})
    assert number.sent("I say 7!") == {"kind": "move", "x": 7}
    with pytest.raises(Refused, match="whole number"):
        number.sent("7 or 8")


def test_an_observation_is_its_only_text_or_a_line_per_field_and_never_an_image() -> None:
    assert shown({"a": "x", "b": [1], "metadata": {}, "c": None}, None, None) == "a: x\nb: [1]"
    assert shown({"a": "x", "metadata": {}}, None, None) == "x" and shown({"a": "", "done": False}, None, None) == ""
    assert shown({"a": "x", "b": "y", "legal": ["z"]}, None, "legal") == "a: x\nb: y"
    for image in ("iVBORw0KGgo" + "A" * 60, "data:image/png;base64,AAAA", {"type": "image", "data": "AAAA"}):
        with pytest.raises(ServerFault, match="the field picture is an image; a model reads text only"):
            shown({"text": "x", "picture": image}, None, None)
        assert shown({"text": "x", "picture": image}, ["text"], None) == "x"
    assert shown({"a": "/9j/ is where I am", "b": "data: none"}, None, None)


def running() -> set[int]:
    """Stand-ins that run in processes of their own."""
    return {each.pid for each in psutil.Process().children(recursive=True) if str(PROGRAM) in each.cmdline()}


@pytest.mark.parametrize(("kind", "where"), [("unseeded", "starts"), ("hidden", "turn 1"), ("shared", "turn 1")])
def test_a_server_that_ignores_its_seed_is_refused(addresses: dict[str, str], kind: str, where: str) -> None:
    with pytest.raises(BadInput, match=f"ignores its seed.*{where}") as refused:
        check_environment(OpenEnvConfig(address=addresses[kind]))
    assert refused.value.where == "environment openenv"


def test_one_that_follows_its_seed_is_not(addresses: dict[str, str]) -> None:
    for kind in ("guess", "moves", "several", "tools"):
        check_environment(OpenEnvConfig(address=addresses[kind]))


@pytest.mark.parametrize(
    ("guess", "error", "details"),
    [
        (13, "environment_server_error", "unlucky"),
        (14, "environment_time_limit", "within 0.3 s"),
        (16, "environment_server_error", "none of OpenEnv's"),
        (17, "environment_died", "ConnectionClosed"),
        (18, "environment_reward", "the reward is nan"),
        (19, "environment_reward", "the reward is 'much'"),
        (20, "environment_no_text", "the field picture is an image"),
        (22, "environment_server_error", "UnicodeDecodeError"),
        (23, "environment_server_error", "no fields"),
        (24, "environment_server_error", "the observation has no text; it has other"),
        pytest.param(25, "environment_died", "too big", marks=pytest.mark.slow),
    ],
)
def test_what_breaks_costs_its_own_episode(addresses: dict[str, str], guess: int, error: str, details: str) -> None:
    with made(addresses["odd"], observation=["text"] if guess == 24 else None) as environment:
        for _ in range(2):  # what broke is whole again in the next wave
            environment.reset_many([1, 2])
            if guess == 14:
                environment._slots[0].state.session.answer_seconds = 0.3
            steps = environment.step_many({0: str(guess), 1: "99"})
            assert steps[0].error == error and details in str(steps[0].details) and steps[0].done
            assert steps[1].observation == "It is lower." and one(environment, "99", slot=1).legal


def test_a_long_observation_is_shown_as_it_is(addresses: dict[str, str]) -> None:
    """The rollout bounds it (`environment_observation_limit`)."""
    with made(addresses["odd"]) as environment:
        environment.reset_many([1])
        assert len(one(environment, "21").observation) == 300_000


def test_a_server_that_ends_is_started_again() -> None:
    before = running()
    with closing(OpenEnvConfig(command=command("odd")).make()) as environment:
        environment.reset_many([1, 2, 3])
        died = environment.step_many({0: "99", 1: "15"})
        assert died[1].error == "environment_died" and "the server gives up" in str(died[1].details)
        assert one(environment, "99", slot=2).error == "environment_died"
        assert not any(start.error for start in environment.reset_many([1, 2])), "another one is started"
        assert one(environment, "99").observation == "It is lower."
    assert running() == before, "what was started has ended"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_is_killed_or_hangs_costs_the_episodes_that_it_has(number: signal.Signals) -> None:
    """One that hangs is ended where it takes no connection; another one takes its place."""
    before = running()
    with closing(OpenEnvConfig(command=command("guess"), answer_seconds=5).make()) as environment:
        environment.reset_many([1, 2])
        (process,) = running() - before
        os.kill(process, number)
        broken = "environment_died" if number == signal.SIGKILL else "environment_time_limit"
        assert all(step.error == broken for step in environment.step_many({0: "99", 1: "99"}).values())
        wave = environment.reset_many([1, 2])
        assert not any(start.error for start in (wave if number == signal.SIGKILL else environment.reset_many([1, 2])))
        assert one(environment, "99").observation == "It is lower."
    assert running() == before


def test_one_at_an_address_is_waited_for() -> None:
    with server("guess") as address:
        environment = OpenEnvConfig(address=address, answer_seconds=30).make()
        environment.reset_many([1, 2])
    assert one(environment, "99").error == "environment_died"
    begun: list[Any] = []
    waiting = threading.Thread(target=lambda: begun.extend(environment.reset_many([1, 2])))
    waiting.start()
    with server("guess", port=int(address.rpartition(":")[2])):
        waiting.join(60)
        assert len(begun) == 2 and not any(start.error for start in begun)
        assert one(environment, "99").observation == "It is lower."
        run(environment._slots[0].state.session.close())
        assert not any(start.error for start in environment.reset_many([1, 2])), "a closed session is opened anew"
    environment.close()
    with made(address) as environment, pytest.raises(EnvironmentBroken, match="does not answer"):
        environment.reset_many([1])


def test_one_that_does_not_come_back_costs_its_episodes() -> None:
    with server("guess") as address:
        environment = OpenEnvConfig(address=address).make()
        environment.reset_many([1, 2])
    with closing(environment):
        environment._servers.config = environment._servers.config.model_copy(update={"answer_seconds": 0.1})
        for _ in range(2):
            starts = environment.reset_many([1, 2])
            assert [start.error for start in starts] == ["environment_died"] * 2
            assert "ConnectionRefusedError" in str(starts[0].details)


@pytest.mark.parametrize("lag", [0, 1])
def test_sixteen_slots_wait_side_by_side_also_while_others_sample(addresses: dict[str, str], lag: int) -> None:
    """A step is answered once sixteen of them wait."""
    standin.Slow.waiting = 0
    with made(addresses["slow"], max_turns=1) as environment:
        played = play_wave(
            ScriptedPolicy(lambda at, turn: ("99", True)), environment, slots_of(environment.reset_many(range(16))),
            method=method(environment_lag=lag), weights_digest="w", stage="collect",
            seed_of=lambda name: np.random.SeedSequence(list(name.encode())),
            sampling=SamplingConfig(max_new_tokens=64),
        )  # fmt: skip
    assert [turn.turn_reward for each in played for turn in each.turns] == [0.1] * 16


def test_a_check_names_why_no_episode_starts(addresses: dict[str, str]) -> None:
    config = OpenEnvConfig(address=addresses["guess"], observation=["board"])
    (finding,) = starting(config, [1, 2])
    assert finding.outcome == "failed" and "seed 1: environment_server_error: the observation has no board" in str(
        finding
    )
    with pytest.raises(
        BadInput, match="no episode can be started: environment_server_error\nthe observation has no board"
    ):
        check_environment(config)


@pytest.mark.slow
def test_a_server_for_few_episodes_gets_others_beside_it() -> None:
    with closing(OpenEnvConfig(command=command("guess", 2), servers=2).make()) as environment:
        starts = environment.reset_many(list(range(5)))
        assert [start.error for start in starts].count("environment_server_full") == 1
        assert "max_concurrent_envs" in str(next(start.details for start in starts if start.error))
        assert len(environment._servers._servers) == 2
        assert not any(start.error for start in environment.reset_many(list(range(4))))


def test_no_server(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"exit code 127\n.*nowhere/python") as refused:
        check_environment(OpenEnvConfig(command="nowhere/python server.py {port}"))
    assert "python3 -m venv .venv-openenv && .venv-openenv/bin/pip install openenv==" in str(refused.value.next_step)
    with pytest.raises(BadInput, match="exit code 3\nno such option"):
        check_environment(OpenEnvConfig(command="echo no such option {port}; exit 3"))
    with pytest.raises(EnvironmentBroken, match=r"127\.0\.0\.1:9 does not answer"):
        check_environment(OpenEnvConfig(address="http://127.0.0.1:9"))
    (tmp_path / "schema").write_text("Hello.")
    web = f"cd {tmp_path}; exec {sys.executable} -m http.server --bind 127.0.0.1 {{port}}"
    with pytest.raises(BadInput, match=r"does not say what its actions are \(GET http://\S+/schema: status 200"):
        check_environment(OpenEnvConfig(command=web))


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("untyped", BadInput, "actions cannot be read: TypeError: .*'guess': 5"),
        ("unnamed", BadInput, "actions cannot be read: KeyError: 'input_schema': .*'tool': 'guess'"),
        ("toolless", EnvironmentBroken, "does not list its tools: .*no such action"),
    ],
)
def test_a_server_whose_actions_cannot_be_read_is_refused_in_words(
    addresses: dict[str, str], kind: str, error: type[CrlError], message: str
) -> None:
    with made(addresses[kind]) as environment, pytest.raises(error, match=message):
        environment.reset_many([0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "command or address; found none"),
        ({"address": "http://a", "command": "b {port}"}, "found both"),
        ({"command": "server"}, "command has to hold {port}.*; found server"),
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
