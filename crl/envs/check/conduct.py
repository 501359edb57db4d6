"""Checks of how an environment behaves, each in a process of the environment's own. All of them return findings."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from crl.config import EnvironmentConfig
from crl.envs.check.walks import ILLEGAL, Noted, Walks, draw_action, located, walked, wrong_actions
from crl.faults import details_of
from crl.protocols import Environment, Leveled, Proves, Start, Step, ToolCalls

_DIGITS = re.compile(r"\d+")
_LATER = 5
"""Actions after an illegal one by which its state is compared with one that saw none."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    check: str
    outcome: Literal["ok", "failed", "note"]
    message: str


def walk_here(
    config: EnvironmentConfig, seeds: Sequence[int], batch: int, turns: int, together: bool, stream: int | None
) -> Walks:
    """Walks with a new instance."""
    with closing(Noted(config.make())) as environment:
        return walked(environment, seeds, batch=batch, turns=turns, together=together, stream=stream)


def starting(config: EnvironmentConfig, seeds: Sequence[int]) -> list[Finding]:
    """Whether it starts, with what it has to say."""
    with closing(Noted(config.make())) as environment:
        starts: Sequence[Any] = environment.reset_many(seeds)
    if len(starts) != len(seeds):
        return [Finding("start", "failed", f"{len(seeds)} seeds gave {len(starts)} starts")]
    for seed, start in zip(seeds, starts, strict=True):
        if not isinstance(start, Start) or not isinstance(start.goal, str) or not isinstance(start.observation, str):
            return [Finding("start", "failed", f"seed {seed} starts with {start!r:.100}")]
        if start.error is not None:
            return [Finding("start", "failed", located(f"seed {seed}: {start.error}: {start.details}", start.details))]
        if wrong := wrong_actions(start.actions):
            return [Finding("start", "failed", f"seed {seed}: {wrong}")]
        if not start.goal.strip():
            return [Finding("start", "failed", f"seed {seed}: the goal is empty")]
    kind = type(starts[0].actions).__name__ if not isinstance(starts[0].actions, tuple) else "listed names"
    return [Finding("start", "ok", f"actions: {kind}; goal: {starts[0].goal:.80}")]


def copies(config: EnvironmentConfig, seeds: Sequence[int], turns: int) -> list[Finding]:
    """Whether two instances in one process leave each other alone."""
    with closing(Noted(config.make())) as first, closing(config.make()) as second:
        for one, other in zip(seeds, reversed(seeds), strict=True):
            alone = walked(first, [one], batch=1, turns=turns).walks[0]
            disturbed = walked(_Disturbed(first, second, other), [one], batch=1, turns=turns).walks[0]
            if difference := alone.difference(disturbed):
                return [Finding("copies", "failed", f"an instance that plays beside changes it: {difference}")]
    return [Finding("copies", "ok", f"{len(seeds)} episodes are the same beside another instance")]


class _Disturbed:
    """An environment before each of whose steps another instance steps too."""

    def __init__(self, environment: Environment, other: Environment, seed: int) -> None:
        self._environment, self._other, self._seed, self._random = environment, other, seed, Random(seed)

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        starts = self._environment.reset_many(seeds)
        self._shown = self._other.reset_many([self._seed])[0]
        return starts

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        oracle = None if isinstance(self._shown.actions, tuple) else self._other.oracle(0)
        action = draw_action(self._random, self._shown.actions, self._shown.observation, oracle)
        step = self._other.step_many({0: action})[0]
        self._shown = (
            self._other.reset_many([self._seed])[0] if step.done else Start("", step.observation, step.actions)
        )
        return self._environment.step_many(actions)

    def oracle(self, slot: int) -> str | None:
        return self._environment.oracle(slot)

    def close(self) -> None:
        """Nothing: it is lent."""


def illegal_actions(config: EnvironmentConfig, seeds: Sequence[int], turns: int) -> list[Finding]:
    """What answers do that no environment may stumble over: a turn is spent, and the state stays."""
    with closing(Noted(config.make())) as environment:
        refused: list[str] = []
        for what, action in ILLEGAL.items():
            wrong = next(filter(None, (_illegal(environment, seed, action) for seed in seeds)), None)
            refused += [f"{what}: {wrong}"] if wrong else []
        if refused:
            found = [Finding("illegal actions", "failed", "; ".join(refused[:3]))]
        else:
            found = [Finding("illegal actions", "ok", f"{len(ILLEGAL)} kinds: refused, and the state stays")]
        environment.reset_many([seeds[0]])
        for turn in range(1, turns + 1):
            if environment.step_many({0: None})[0].done:
                said = f"answers that name nothing end an episode after {turn}"
                return [*found, Finding("turns are spent", "ok", said)]
    said = f"an episode goes on after {turns} answers that name nothing"
    return [*found, Finding("turns are spent", "failed", said)]


def _illegal(environment: Environment, seed: int, action: str | None) -> str | None:
    """What is wrong with how an illegal action is taken in the episode of a seed; None where nothing is."""
    try:
        wrong = _after_illegal(environment, seed, action)
    except Exception as error:
        wrong = located(f"raised {type(error).__name__}: {error!s:.80}", details_of(error))
    return None if wrong is None else f"seed {seed}: {wrong}"


def _after_illegal(environment: Environment, seed: int, action: str | None) -> str | None:
    """As :func:`_illegal`. Text may well be legal as free text; where tools are called, nothing but calls is given."""
    start = environment.reset_many([seed])[0]
    if isinstance(start.actions, ToolCalls) and action is not None:
        if not action.startswith('{"arguments"'):
            return None
        action = f"[{action}]" if start.actions.several else action
    step = environment.step_many({0: action})[0]
    if step.legal:
        return None if action is not None and not isinstance(start.actions, tuple) else "it counts as legal"
    if step.error is not None:
        return f"it broke: {located(step.error, step.details)}"
    if step.success:
        return "it succeeds"
    if step.done:  # the only turn there was
        return None
    if not step.feedback.strip() and step.observation == start.observation:
        return "nothing says that it was refused: no feedback, and nothing new to see"
    after = _later(environment, seed, step if isinstance(start.actions, tuple) else start)
    environment.reset_many([seed])
    before = _later(environment, seed, start)
    for one, other in zip(after, before, strict=False):
        if one != other:
            return f"what follows differs: {one!r:.60} and {other!r:.60}"
    return None


def _later(environment: Environment, seed: int, shown: Start | Step) -> list[str]:
    """What the next actions show, but for numbers, which may count turns; up to the end of the episode."""
    random, seen = Random(f"later {seed}"), []
    actions, observation = shown.actions, shown.observation if isinstance(shown, Start) else ""
    for _ in range(_LATER):
        oracle = environment.oracle(0)
        if isinstance(actions, tuple):
            action: str | None = oracle if oracle in actions and random.random() < 0.5 else random.choice(actions)
        else:
            action = oracle or draw_action(random, actions, observation, None)
        step = environment.step_many({0: action})[0]
        if step.done:
            break
        seen.append(_DIGITS.sub("#", step.observation))
        actions, observation = step.actions, step.observation
    return seen


def after_the_end(config: EnvironmentConfig, seeds: Sequence[int], turns: int) -> list[Finding]:
    """Whether a step after the end of an episode raises."""
    with closing(Noted(config.make())) as environment:
        for seed in seeds:
            walk = walked(environment, [seed], batch=1, turns=turns).walks[0]
            if not walk.done:
                continue
            for action in ("anything", None):
                try:
                    environment.step_many({0: action})
                except Exception:
                    continue
                return [Finding("step after done", "failed", f"seed {seed}: it is answered, expected an exception")]
            return [Finding("step after done", "ok", "raises")]
    return [Finding("step after done", "note", f"no episode of {len(seeds)} ended within {turns} turns (--longest)")]


def oracle(config: EnvironmentConfig, seeds: Sequence[int], turns: int) -> list[Finding]:
    """Whether its oracle's actions are legal, and what share of episodes it solves."""
    with closing(Noted(config.make())) as environment:
        starts = environment.reset_many(seeds)
        live = dict(enumerate(starts))
        solved, silent, steps, over = 0, 0, 0, set[int]()
        shown = {slot: start.actions for slot, start in live.items()}
        for _ in range(turns):
            chosen = {slot: environment.oracle(slot) for slot in shown}
            silent += sum(action is None for action in chosen.values())
            chosen = {slot: action for slot, action in chosen.items() if action is not None}
            if not chosen:
                break
            steps += len(chosen)
            done = environment.step_many(dict(chosen))
            for slot, step in done.items():
                if not step.legal:
                    said = f"seed {seeds[slot]}: its action {chosen[slot]!r:.60} is illegal: {step.feedback:.80}"
                    return [Finding("oracle", "failed", said)]
                solved += step.success
                over |= {slot} if step.done else set()
            shown = {slot: step.actions for slot, step in done.items() if not step.done}
    if not steps:
        return [Finding("oracle", "note", "there is none: demonstrations are random actions, or recorded ones")]
    quiet = f"; {silent} times it knew no action" if silent else ""
    said = f"legal in {steps} steps; solves {solved} of {len(seeds)}{quiet}"
    if not solved and len(over) == len(seeds):
        return [Finding("oracle", "failed", f"{said}: nobody may be able to win, or its success is never reported")]
    return [Finding("oracle", "ok", said)]


def tasks(config: EnvironmentConfig, seconds: float) -> list[Finding]:
    """Whether the reference solution of each task wins, as far as `seconds` go."""
    began, judged, faults, left = time.monotonic(), 0, [], False
    with closing(config.make()) as environment:
        if not isinstance(environment, Proves):
            return []
        for name, fault in environment.proofs():
            judged += 1
            faults += [f"{name}: {fault}"] if fault else []
            if left := time.monotonic() - began > seconds:
                break
    if not judged:
        return []
    more = f"; after {seconds:.0f} s the others were left: check again, or with a longer --time-limit" if left else ""
    if faults:
        said = f"{len(faults)} of {judged} tasks cannot be won{more}\n" + "\n".join(faults)
        return [Finding("tasks", "failed", said)]
    return [Finding("tasks", "ok", f"the reference solutions of {judged} tasks win{more}")]


def held_out(config: EnvironmentConfig, training: Sequence[int], held: Sequence[int]) -> list[Finding]:
    """Whether training and held-out seeds share no level, by what the environment says of their content."""
    check = "held out"
    with closing(Noted(config.make())) as environment:
        if not isinstance(environment, Leveled):
            said = "the environment does not say what its levels hold (`content`)"
            return [Finding(check, "note", said)]
        known, kept = _contents(environment, training), _contents(environment, held)
    both = known.keys() & kept.keys()
    counts = f"{len(known)} levels in {len(training)} seeds of training, {len(kept)} in {len(held)} held-out ones"
    if not both:
        return [Finding(check, "ok", f"none is shared: {counts}")]
    one = min(both)
    said = f"{len(both)} shared, such as that of seeds {known[one]} and {kept[one]}: {counts}"
    if config.held_out_from is None:
        return [Finding(check, "note", f"{said}; held_out_from is null: levels are not kept apart")]
    return [Finding(check, "failed", said)]


def _contents(environment: Leveled, seeds: Sequence[int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for at in range(0, len(seeds), 32):
        part = seeds[at : at + 32]
        environment.reset_many(part)  # type: ignore[attr-defined]
        for slot, seed in enumerate(part):
            found.setdefault(environment.content(slot), seed)
    return found
