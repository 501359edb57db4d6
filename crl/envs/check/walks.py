"""Episodes of a random policy, and what was seen in them: a transcript that two walks can be compared by.

Actions of every form are drawn from what a player can see: names, free text, tool calls; some of them invalid. What is
drawn depends on the stream and on what the environment shows, never on other slots.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from crl.faults import location_in
from crl.protocols import Actions, Environment, FreeText, Start, Step, StopReason, ToolCalls, hand_on

_WORD = re.compile(r"\w+")
_BRACKETED = re.compile(r"(\w+)([\[(<])[^\[\]()<>]*([\])>])")
_QUOTED = re.compile(r"[`\"“']([^`\"”']{1,80})[`\"”']")
_INVALID = 0.1
"""Share of actions that name nothing, or nothing that there is."""
_ORACLE = 0.4
"""Share of the oracle's actions where actions are not listed: words alone hardly ever get anywhere."""

ILLEGAL: Mapping[str, str | None] = {
    "nothing": None,
    "an unknown name": "no such action exists",
    "empty text": "",
    "blanks": " \n\t ",
    "100,000 characters": "x" * 100_000,
    "unicode": "идти на север 北へ 🦄\u202e\u0301",
    "control characters": "\x00\x1b[2J\x07\r\n\x7f",
    "brackets": "[" * 500 + "{(<" * 50,
    "a tool that there is not": '{"arguments": {}, "name": "no_such_tool"}',
    "a tool call of wrong types": '{"arguments": {"a": [null, {"b": 1e308}]}, "name": "x"}',
}
"""Answers that no environment may stumble over, by what they are."""
_SHOWN = 60
"""Characters of an observation that a transcript keeps, for people."""
LAST_CALL = "CRL_LAST_CALL"
"""Names the file in which an environment that is checked keeps what it was last asked."""
_LOST = (StopReason.failure, StopReason.turn_limit, StopReason.error)


class Noted:
    """An environment that is checked (protocol `Environment`). A file keeps what it was last asked: where it raises,
    dies or hangs, that is what is known."""

    def __init__(self, environment: Environment) -> None:
        self._environment, self._seeds = environment, list[int]()
        self._file = os.open(path, os.O_WRONLY) if (path := os.environ.get(LAST_CALL)) else None
        hand_on(self, environment, lambda ability: getattr(environment, ability.name))

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        self._seeds = list(seeds)
        self._keep(f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}")
        return self._environment.reset_many(seeds)

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        self._keep("; ".join(f"seed {self._seeds[slot]}, {asked(action)}" for slot, action in actions.items()))
        return self._environment.step_many(actions)

    def oracle(self, slot: int) -> str | None:
        return self._environment.oracle(slot)

    def close(self) -> None:
        self._environment.close()
        if self._file is not None:
            os.close(self._file)

    def _keep(self, text: str) -> None:
        if self._file is not None:
            content = text.encode("utf-8", "backslashreplace")
            os.ftruncate(self._file, os.pwrite(self._file, content, 0))


def located(text: str, details: str | None) -> str:
    """What went wrong, and the line where, as far as a traceback tells it."""
    location = location_in(details)
    return f"{text} ({location})" if location else text


def asked(action: str | None) -> str:
    """An action in words."""
    return "no action" if action is None else f"action {action!r:.60}"


def draw_action(random: Random, actions: Actions, observation: str, oracle: str | None) -> str | None:
    """An action for what is shown; None as an answer that names nothing. `oracle`: what the oracle would do."""
    invalid = random.random() < _INVALID
    if isinstance(actions, ToolCalls):
        return _tool_call(random, actions, observation, oracle, invalid=invalid)
    if invalid:
        return random.choice([None, "no such action exists", "ü🦄"])
    if isinstance(actions, tuple):
        return random.choice(actions) if actions else None
    if oracle is not None and random.random() < _ORACLE:
        return oracle
    return _free_text(random, actions, observation)


def _free_text(random: Random, actions: FreeText, observation: str) -> str:
    words = _WORD.findall(observation) or ["something"]
    word = " ".join(random.choice(words) for _ in range(random.choice([1, 1, 2])))
    patterns: list[tuple[str, str, str]] = _BRACKETED.findall(actions.form)
    quoted: list[str] = [found for found in _QUOTED.findall(actions.form) if not _BRACKETED.search(found)]
    if patterns and random.random() < 0.8:
        name, opening, closing = random.choice(patterns)
        inside = random.choice([word, str(random.randint(0, 100)), ""])
        return f"{name}{opening}{inside}{closing}"
    if quoted and random.random() < 0.6:
        return random.choice(quoted)
    form: list[str] = _WORD.findall(actions.form) or ["go"]
    return random.choice([word, str(random.randint(0, 100)), random.choice(form)])


def _tool_call(random: Random, actions: ToolCalls, observation: str, oracle: str | None, *, invalid: bool) -> str:
    if oracle is not None and not invalid and random.random() < _ORACLE:
        return oracle
    tool = random.choice(actions.tools)
    arguments = draw_value(random, {"type": "object", **tool.parameters}, observation)
    name, several = tool.name, actions.several and random.random() < 0.3
    if invalid:
        fault = random.choice(["name", "missing", "type"])
        if fault == "name":
            name = "no_such_tool"
        elif fault == "missing" or not arguments:
            arguments = {}
        else:
            arguments[random.choice(sorted(arguments))] = {"of": ["another type"]}
    call = json.dumps({"name": name, "arguments": arguments}, sort_keys=True, ensure_ascii=False)
    return f"[{call}{f', {call}' * several}]" if actions.several else call


def draw_value(random: Random, schema: Mapping[str, Any], observation: str, depth: int = 0) -> Any:
    """A value of a JSON schema: its types, enumerations, bounds, required and some optional properties."""
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return random.choice(schema["enum"])
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return draw_value(random, random.choice(choices), observation, depth + 1)
    kind = schema.get("type", "string")
    kind = random.choice(kind) if isinstance(kind, list) else kind
    if kind == "object":
        required = schema.get("required", ())
        return {
            name: draw_value(random, inner, observation, depth + 1)
            for name, inner in schema.get("properties", {}).items()
            if name in required or (depth < 4 and random.random() < 0.5)
        }
    if kind == "array":
        count = random.randint(schema.get("minItems", 0), min(schema.get("maxItems", 3), 8)) if depth < 4 else 0
        return [draw_value(random, schema.get("items", {}), observation, depth + 1) for _ in range(count)]
    if kind == "integer":
        return random.randint(int(schema.get("minimum", 0)), int(schema.get("maximum", 100)))
    if kind == "number":
        return round(random.uniform(float(schema.get("minimum", 0)), float(schema.get("maximum", 100))), 3)
    if kind == "boolean":
        return random.random() < 0.5
    if kind == "null":
        return None
    return random.choice(_WORD.findall(observation) or ["text"])


@dataclass
class Walk:
    """One episode."""

    seed: int
    turns: list[tuple[str, str]] = field(default_factory=list)
    """Of the start and each step: the digest of all of it, and the beginning of what was seen."""
    done: bool = False
    success: bool = False
    broke: bool = False
    """Whether the environment broke in it."""
    breaches: list[str] = field(default_factory=list)
    """Rules of the protocol that it broke."""

    def difference(self, other: Walk) -> str | None:
        """Where two walks of one seed part, in words; None where they are equal."""
        for turn, (one, two) in enumerate(zip(self.turns, other.turns, strict=False)):
            if one[0] != two[0]:
                place = f"seed {self.seed}, " + ("at the start" if turn == 0 else f"turn {turn}")
                return f"{place}: {one[1]!r} and {two[1]!r}"
        if len(self.turns) != len(other.turns):
            return f"seed {self.seed}: {len(self.turns) - 1} turns and {len(other.turns) - 1}"
        return None


@dataclass
class Walks:
    """Several episodes, what they took, and how large what they showed was."""

    walks: list[Walk] = field(default_factory=list)
    reset_seconds: float = 0.0
    step_seconds: float = 0.0
    steps: int = 0
    longest: int = 0
    """Characters of the longest text that was shown at one time."""
    characters: int = 0
    """Characters of all observations."""
    unusual: dict[str, int] = field(default_factory=dict)
    """Observations that hold something unusual, by what it is."""


def walked(
    environment: Environment,
    seeds: Sequence[int],
    *,
    batch: int,
    turns: int,
    together: bool = True,
    stream: int | None = None,
) -> Walks:
    """Play each seed with a random policy, `batch` at a time, for at most so many turns.

    `together`: step all slots in one call, else one slot a call in another order. `stream`: the same draws in every
    episode; None: draws by the seed.
    """
    found = Walks()
    for at in range(0, len(seeds), batch):
        part = list(seeds[at : at + batch])
        began = time.perf_counter()
        starts = environment.reset_many(part)
        found.reset_seconds += time.perf_counter() - began
        walks = [Walk(seed) for seed in part]
        for walk, start in zip(walks, starts, strict=True):
            _keep(found, walk, start)
        shown: dict[int, tuple[Actions, str]] = {
            slot: (start.actions, start.observation) for slot, start in enumerate(starts) if start.error is None
        }
        streams = [Random(f"walk {seed if stream is None else stream}") for seed in part]
        for _ in range(turns):
            if not shown:
                break
            chosen = {slot: _chosen(environment, slot, *shown[slot], streams[slot]) for slot in shown}
            parts = [chosen] if together else [{slot: chosen[slot]} for slot in reversed(list(chosen))]
            began = time.perf_counter()
            steps = {slot: step for each in parts for slot, step in environment.step_many(each).items()}
            found.step_seconds += time.perf_counter() - began
            found.steps += len(chosen)
            if steps.keys() != chosen.keys():
                raise ValueError(f"step_many answered for slots {sorted(steps)}, and was asked for {sorted(chosen)}")
            for slot, step in sorted(steps.items()):
                walk = walks[slot]
                _keep(found, walk, step)
                place = f"seed {walk.seed}, turn {len(walk.turns) - 1}, {asked(chosen[slot])}"
                walk.breaches += [f"{place}: {breach}" for breach in breaches(step, chosen[slot], shown[slot])]
                walk.done, walk.success = step.done, step.success
            shown = {slot: (step.actions, step.observation) for slot, step in steps.items() if not step.done}
        found.walks += walks
    return found


def _chosen(environment: Environment, slot: int, actions: Actions, observation: str, random: Random) -> str | None:
    oracle = None if isinstance(actions, tuple) else environment.oracle(slot)
    return draw_action(random, actions, observation, oracle)


def _keep(found: Walks, walk: Walk, said: Start | Step) -> None:
    text = said.observation
    digest = hashlib.sha256(repr(said).encode("utf-8", "backslashreplace")).hexdigest()[:16]
    walk.turns.append((digest, text[:_SHOWN]))
    walk.broke |= said.error is not None
    found.longest = max(found.longest, len(text) + len(said.goal if isinstance(said, Start) else said.feedback))
    found.characters += len(text)
    for name, there in (
        ("beyond ASCII", not text.isascii()),
        ("control characters", any(ord(each) < 32 and each not in "\n\t" for each in text)),
        ("lone surrogates, which will be replaced", any("\ud800" <= each <= "\udfff" for each in text)),
    ):
        if there:
            found.unusual[name] = found.unusual.get(name, 0) + 1


def breaches(step: Step, action: str | None, shown: tuple[Actions, str]) -> list[str]:
    """Rules that a step breaks, in words."""
    found, before = [], shown[0]
    finite = isinstance(step.reward, int | float) and abs(step.reward) < float("inf")
    if not finite:
        found.append(f"the reward is {step.reward!r}")
    if step.error is not None:
        found.append(f"it broke: {located(str(step.error), step.details)}")
    if step.success and not step.done:
        found.append("success, and the episode goes on")
    if not step.done and step.stop_reason is not None:
        found.append(f"stop reason {step.stop_reason}, and the episode goes on")
    if step.success and step.stop_reason not in (None, StopReason.success):
        found.append(f"success, and the stop reason is {step.stop_reason}")
    if step.done and not step.success and step.stop_reason not in (*_LOST, None):
        found.append(f"no success, and the stop reason is {step.stop_reason}")
    if isinstance(before, tuple) and action in before and not step.legal and step.error is None:
        found.append(f"the listed action {action!r:.60} is illegal")
    if isinstance(before, tuple) and action not in before and step.legal:
        found.append(f"{action!r:.60} is not listed, and legal")
    if action is None and step.legal:
        found.append("an answer that names nothing is legal")
    if not step.done and (wrong := wrong_actions(step.actions)):
        found.append(wrong)
    return found


def wrong_actions(actions: Any) -> str | None:
    """What is wrong with the actions of a start or a step; None where nothing is."""
    if isinstance(actions, FreeText):
        return None if actions.form.strip() else "the form of free text is empty"
    if isinstance(actions, ToolCalls):
        names = [tool.name for tool in actions.tools]
        if not names or len(set(names)) < len(names):
            return f"the tools are {names}: expected at least one, with different names"
        wrong = [tool.name for tool in actions.tools if tool.parameters.get("type", "object") != "object"]
        return f"the parameters of tool {wrong[0]} are no object" if wrong else None
    if not isinstance(actions, tuple):
        return f"the actions are a {type(actions).__name__}, expected a tuple of names, FreeText or ToolCalls"
    if not actions or not all(isinstance(each, str) and each.strip() for each in actions):
        return f"the actions are {actions!r:.80}, expected names"
    folded = [" ".join(each.split()).casefold() for each in actions]
    return "two actions differ by case or blanks only" if len(set(folded)) < len(folded) else None
