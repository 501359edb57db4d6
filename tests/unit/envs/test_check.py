"""What `crl env check` finds: nothing in a sound environment, and in each of the others what is wrong with it."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import time
from random import Random
from typing import Any, ClassVar

import pytest

from crl.config import SeedRange
from crl.envs import check_environment
from crl.envs.check import conduct
from crl.envs.check.conduct import Finding
from crl.envs.check.run import Plan, check, require_passed
from crl.envs.check.walks import draw_action, walked
from crl.envs.game import Game, Move
from crl.errors import BadInput
from crl.faults import Fault
from crl.protocols import Actions, FreeText, Start, StopReason, Tool, ToolCalls

SEEDS = [0, 1, 2, 3]
TRAINING, HELD_OUT = SeedRange(start=0, count=50), SeedRange(start=1_000_000, count=20)


class Count(Game):
    """Count up to a number."""

    kind: str = "tests.unit.envs.test_check:Count"
    max_turns: int = 12
    held_out_from: int | None = 1_000_000

    def begin(self, random: Random) -> dict[str, Any]:
        return {"left": random.randint(1, 40), "at": 0}

    def goal(self, state: Any) -> str:
        return "Count to the number."

    def look(self, state: Any) -> str:
        return f"{state['left']} to go, at {state['at']}"

    def actions(self, state: Any) -> Actions:
        return ("add one", "add ten")

    def act(self, state: Any, action: str) -> Move:
        state["left"] -= 10 if action == "add ten" else 1
        return Move(success=state["left"] == 0, over=state["left"] < 0)

    def solve(self, state: Any) -> str | None:
        return "add ten" if state["left"] >= 10 else "add one"

    def content(self, state: Any) -> str:
        return str(state["left"])


class Named(Count):
    """The same in free text."""

    kind: str = "tests.unit.envs.test_check:Named"

    def actions(self, state: Any) -> Actions:
        return FreeText("write add[number], such as add[1] or add[10]")

    def act(self, state: Any, action: str) -> Move:
        if action not in ("add[1]", "add[10]"):
            return Move("Write add[1] or add[10].", legal=False)
        return super().act(state, {"add[1]": "add one", "add[10]": "add ten"}[action])

    def solve(self, state: Any) -> str | None:
        return "add[10]" if state["left"] >= 10 else "add[1]"


def found(findings: list[Finding], name: str) -> Finding:
    return next(each for each in findings if each.check == name)


def plan(config: Game, **changes: Any) -> Plan:
    return Plan(config, TRAINING, HELD_OUT, episodes=20, longest=40, **changes)


@pytest.mark.parametrize("game", [Count(), pytest.param(Named(), marks=pytest.mark.slow)], ids=["listed", "free text"])
def test_a_sound_environment_keeps_every_promise(game: Game) -> None:
    findings = check(plan(game))
    assert {each.check for each in findings if each.outcome == "failed"} == set(), findings
    assert {each.check for each in findings if each.outcome == "ok"} == {
        "start", "determinism", "rewards and endings", "seeding", "copies", "illegal actions", "turns are spent",
        "step after done", "oracle", "held out",
    }  # fmt: skip
    assert found(findings, "determinism").message.startswith("20 episodes")
    assert "solves 20 of 20" in found(findings, "oracle").message
    assert "steps/s" in found(findings, "speed").message
    require_passed(findings, "count")


class Hashed(Count):
    """What it shows depends on the order of a set."""

    kind: str = "tests.unit.envs.test_check:Hashed"

    def look(self, state: Any) -> str:
        return " ".join({"north", "south", "east", "west", "up", "down"})


class Dying(Count):
    """Ends its process once somebody plays."""

    kind: str = "tests.unit.envs.test_check:Dying"

    def act(self, state: Any, action: str) -> Move:
        os._exit(5)


@pytest.mark.slow
def test_the_order_of_a_set_and_a_death_are_found_through_processes() -> None:
    findings = check(plan(Hashed()))
    assert found(findings, "determinism").outcome == "failed"
    assert "at the start" in found(findings, "determinism").message
    findings = check(plan(Dying()))
    assert found(findings, "determinism").message.endswith("its process ended after `walk_here` was called")
    assert found(findings, "start").outcome == "ok", "what can be checked is"
    with pytest.raises(BadInput, match=r"fails .* determinism"):
        require_passed(findings, "dying")


class Sharing(Count):
    """Instances share a counter."""

    numbers: ClassVar[Any] = itertools.count()

    def look(self, state: Any) -> str:
        return f"{state['left']} {next(self.numbers)}"


class Stumbling(Count):
    """Raises on text that it does not know."""

    def actions(self, state: Any) -> Actions:
        return FreeText("write add")

    def act(self, state: Any, action: str) -> Move:
        return {"add": Move()}[action]


class Punishing(Named):
    """An illegal action moves it."""

    def act(self, state: Any, action: str) -> Move:
        move = super().act(state, action)
        if not move.legal:
            state["at"] = "lost"
        return move


class Patient(Count):
    """Never ends."""

    max_turns: int = 10_000


class Cheating(Named):
    """Its oracle says what is refused."""

    def solve(self, state: Any) -> str | None:
        return "cheat"


class Leaking(Count):
    """Levels are said to be held out and are not: content says more than they are made of."""

    def make(self) -> Any:
        environment = super().make()
        environment._levels = type("Same", (), {"of": lambda self, seed: self.level})()
        environment._levels.level = type("Level", (), {"state": {"left": 3, "at": 0}, "content": "3"})()
        return environment


class Losing(Count):
    """Nobody wins, though it ends."""

    def act(self, state: Any, action: str) -> Move:
        return Move(over=super().act(state, action).over or state["left"] == 0)


class Impossible(Count):
    """One of its tasks cannot be won."""

    def make(self) -> Any:
        environment = super().make()
        environment.proofs = lambda: iter([("a", ""), ("b", "no test is collected"), ("c", "")])  # type: ignore[attr-defined]
        return environment


class Alike(Count):
    """What random play does not tell apart."""

    kind: str = "tests.unit.envs.test_check:Alike"

    def look(self, state: Any) -> str:
        return "count"

    def act(self, state: Any, action: str) -> Move:
        return Move(over=False)


@pytest.mark.slow
def test_seeds_that_random_play_cannot_tell_apart_are_a_note() -> None:
    findings = check(plan(Alike()))
    assert found(findings, "seeding").outcome == "note" and "1 different" in found(findings, "seeding").message


@pytest.mark.parametrize(
    ("check_of", "game", "name", "said"),
    [
        (lambda game: conduct.copies(game, SEEDS, 20), Sharing(), "copies", "plays beside changes it"),
        (lambda game: conduct.illegal_actions(game, SEEDS, 50), Stumbling(), "illegal actions", "raised KeyError"),
        (lambda game: conduct.illegal_actions(game, SEEDS, 50), Punishing(), "illegal actions", "what follows differs"),
        (lambda game: conduct.illegal_actions(game, SEEDS, 50), Patient(), "turns are spent", "after 50 answers"),
        (lambda game: conduct.oracle(game, SEEDS, 50), Cheating(), "oracle", "'cheat' is illegal"),
        (lambda game: conduct.oracle(game, SEEDS, 50), Losing(), "oracle", "solves 0 of 4"),
        (lambda game: conduct.tasks(Impossible(), 60), Impossible(), "tasks", "1 of 3 tasks cannot be won"),
        (lambda game: conduct.held_out(game, SEEDS, [10**6]), Leaking(), "held out", "1 shared"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Game) else "",
)
def test_what_is_wrong_is_named(check_of: Any, game: Game, name: str, said: str) -> None:
    result = found(check_of(game), name)
    assert result.outcome == "failed" and said in result.message, result


class Endless:
    """Wraps an environment: it answers after the end, and its steps are changed."""

    def __init__(self, game: Game, **changes: Any) -> None:
        self.inner, self.changes = game.make(), changes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def step_many(self, actions: Any) -> Any:
        from dataclasses import replace

        for slot in actions:
            self.inner._slots[slot].done = False  # type: ignore[attr-defined]
        return {slot: replace(step, **self.changes) for slot, step in self.inner.step_many(actions).items()}


def test_an_answer_after_the_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Count, "make", lambda self: Endless(_Plain()))
    assert conduct.after_the_end(Count(), SEEDS, 40)[0].outcome == "failed"


class _Plain(Count):
    def make(self) -> Any:
        from crl.envs.game import Games

        return Games(self)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reward": math.nan}, "the reward is nan"),
        ({"stop_reason": StopReason.failure, "done": False}, "the episode goes on"),
        ({"success": True, "done": False}, "success, and the episode goes on"),
        ({"success": True, "done": True, "stop_reason": StopReason.turn_limit}, "the stop reason is turn_limit"),
        ({"actions": ("Go", "go"), "done": False}, "differ by case"),
        ({"error": "environment_KeyError"}, "it broke"),
    ],
)
def test_steps_that_contradict_themselves_are_found(changes: dict[str, Any], said: str) -> None:
    walks = walked(Endless(_Plain(), **changes), [1, 2], batch=2, turns=3)
    assert any(said in breach for walk in walks.walks for breach in walk.breaches), walks.walks


def test_tool_calls_are_drawn_from_their_schemas_valid_and_not() -> None:
    import json

    schema = {
        "type": "object",
        "properties": {"words": {"type": "string"}, "page": {"type": "integer", "minimum": 2, "maximum": 4}},
        "required": ["words", "page"],
    }
    actions, random = ToolCalls((Tool("search", "Find.", schema),)), Random(1)
    calls = [json.loads(draw_action(random, actions, "red shoe", None) or "") for _ in range(300)]
    valid = [
        call for call in calls
        if call["name"] == "search" and call["arguments"].get("page") in (2, 3, 4)
        and call["arguments"].get("words") in ("red", "shoe")
    ]  # fmt: skip
    assert 0.8 < len(valid) / len(calls) < 1, "most can be called, and some cannot"
    forms = {draw_action(random, FreeText("write search[words]"), "red shoe", None) for _ in range(200)}
    assert {"search[red]", "search[shoe]", None} <= forms


@pytest.mark.slow
def test_a_check_that_takes_too_long_is_a_finding() -> None:
    findings = check(plan(Sleeping(), time_limit_seconds=2.0))
    assert findings == [Finding("start", "failed", findings[0].message)]
    assert "no answer within 2 s" in findings[0].message


class Sleeping(Count):
    """Never starts."""

    kind: str = "tests.unit.envs.test_check:Sleeping"

    def begin(self, random: Random) -> Any:
        while True:
            time.sleep(60)


class Lacking(Count):
    """A package is missing that it needs when it begins."""

    kind: str = "tests.unit.envs.test_check:Lacking"
    every: bool = True
    error: type[Exception] = ModuleNotFoundError

    def make(self) -> Any:
        environment = super().make()
        whole = environment.reset_many

        def begun(seeds: Any) -> list[Start]:
            fault = Fault(self.error("No module named 'chess'"))
            return [
                Start.failed(fault.code, fault.details) if self.every or seed == 0 else whole([seed])[0]
                for seed in seeds
            ]

        environment.reset_many = begun
        return environment


@pytest.mark.parametrize(("every", "error"), [(True, ModuleNotFoundError), (False, ImportError), (True, OSError)])
def test_what_is_missing_at_a_start_is_refused_before_work_starts(every: bool, error: type[Exception]) -> None:
    with pytest.raises(BadInput, match="No module named 'chess'"):
        check_environment(Lacking(every=every, error=error))


def test_one_bad_level_is_not_refused() -> None:
    check_environment(Lacking(every=False, error=OSError))


class Walls(Count):
    """Raises in the third turn of one seed."""

    kind: str = "tests.unit.envs.test_check:Walls"
    held_out_from: int | None = None

    def begin(self, random: Random) -> dict[str, Any]:
        return {**super().begin(random), "turn": 0}

    def act(self, state: Any, action: str) -> Move:
        state["turn"] += 1
        if state["turn"] == 3 and state["at"] == 0 and state["left"] % 5 == 0:
            raise ZeroDivisionError("a wall")
        return super().act(state, action)


@pytest.mark.slow
@pytest.mark.parametrize("game", [Walls(), Dying()], ids=["raises", "ends its process"])
def test_what_breaks_is_named_with_seed_action_and_line(game: Game) -> None:
    message = found(check(Plan(game, TRAINING, HELD_OUT, episodes=8, longest=8)), "determinism").message
    assert re.match(r"seed \d+, action 'add (one|ten)': ", message), message
    if isinstance(game, Walls):
        assert "ZeroDivisionError: a wall (test_check.py line " in message and "in act)" in message


class Tools(Count):
    """Takes calls of two tools."""

    kind: str = "tests.unit.envs.test_check:Tools"

    def actions(self, state: Any) -> Actions:
        size = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
        return ToolCalls((Tool("add", "Add so much.", size), Tool("wait", "Do nothing.", {})))

    def act(self, state: Any, action: str) -> Move:
        call = json.loads(action)
        size = call["arguments"].get("size")
        if call["name"] == "add" and not isinstance(size, int):
            return Move("How much?", legal=False)
        state["left"] -= size if call["name"] == "add" else 0
        return Move(success=state["left"] == 0, over=state["left"] < 0)

    def solve(self, state: Any) -> str | None:
        return json.dumps({"arguments": {"size": state["left"]}, "name": "add"})


class Echo(Tools):
    """Says what it is told."""

    kind: str = "tests.unit.envs.test_check:Echo"

    def actions(self, state: Any) -> Actions:
        text = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        return ToolCalls((Tool("say", "Say a word.", text),))

    def look(self, state: Any) -> str:
        return str(state.get("heard", "one two three four five six seven eight nine ten"))

    def act(self, state: Any, action: str) -> Move:
        text = json.loads(action)["arguments"].get("text")
        if not isinstance(text, str):
            return Move("Which word?", legal=False)
        state["heard"] = text
        return Move()

    def solve(self, state: Any) -> str | None:
        return None


def test_words_of_calls_are_drawn_from_the_same_view_with_and_without_an_illegal_one() -> None:
    results = conduct.illegal_actions(Echo(), SEEDS, 40)
    assert {each.outcome for each in results} == {"ok"}, results


def test_a_game_of_tools_is_given_calls_of_its_tools_alone() -> None:
    game = Tools().make()
    game.reset_many([1])
    refused = game.step_many({0: '{"arguments": {}, "name": "subtract"}'})[0]
    assert not refused.legal and refused.feedback == "There is no tool subtract. Possible: add, wait."
    assert not game.step_many({0: None})[0].legal
    for check_of in (conduct.illegal_actions, conduct.after_the_end):
        results = check_of(Tools(), SEEDS, 40)
        assert {each.outcome for each in results} == {"ok"}, results
    walks = walked(Tools().make(), [1, 2, 3], batch=3, turns=20)
    assert not [breach for walk in walks.walks for breach in walk.breaches]
