"""Every check of an environment, each in a process of its own: one that dies or hangs is a finding."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from crl.config import EnvironmentConfig, SeedRange
from crl.config.mechanisms import LONGEST_OBSERVATION
from crl.envs.check.conduct import Finding
from crl.envs.check.walks import LAST_CALL, Walks, located
from crl.envs.isolated import EnvironmentLost, ForkServer, Isolated
from crl.errors import BadInput, CrlError

_HERE = "crl.envs.check.conduct"
_BATCH, _OTHER_BATCH = 16, 7
_FEW = 6
"""Seeds of a check that plays each several times."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What an environment is checked with."""

    config: EnvironmentConfig
    training: SeedRange
    held_out: SeedRange
    episodes: int = 100
    longest: int = 200
    """Turns after which an episode of a check is left."""
    time_limit_seconds: float = 300.0
    """Longest check."""


def check(plan: Plan, say: Callable[[str], None] = lambda name: None) -> list[Finding]:
    """What every check finds; `say` is given the name of each as it begins. Raises BadInput for a config whose class no
    other process can import."""
    found: list[Finding] = []
    with tempfile.NamedTemporaryFile() as last, ExitStack() as servers:
        # Two processes of different hash seeds: what depends on the order of a set differs between them.
        one, other = (
            servers.enter_context(
                closing(ForkServer(plan.config, environ={"PYTHONHASHSEED": hash_seed, LAST_CALL: last.name}))
            )
            for hash_seed in ("1", "2")
        )
        for name, work in _checks(plan, one, other):
            say(name)
            last.truncate(0)
            try:
                found += work()
            except (EnvironmentLost, CrlError) as error:
                found.append(Finding(name, "failed", _told(error, Path(last.name).read_text(encoding="utf-8"))))
                if name == "start":
                    break
    return found


def _told(error: EnvironmentLost | CrlError, last: str) -> str:
    """What went wrong, and as far as it is known where, and after which call."""
    text = f"{last}: {error}" if last else str(error)
    return located(text, error.details if isinstance(error, EnvironmentLost) else None)


def _checks(plan: Plan, one: ForkServer, other: ForkServer) -> Iterator[tuple[str, Callable[[], list[Finding]]]]:
    seeds = [plan.training.start + at for at in range(min(plan.episodes, plan.training.count))]
    few, turns = seeds[:_FEW], plan.longest
    apart = partial(_apart, plan, one)
    yield "start", lambda: apart("starting", few)
    yield "determinism", lambda: _determinism(plan, one, other, seeds)
    yield "seeding", lambda: _seeding(plan, one, seeds)
    yield "copies", lambda: apart("copies", few, turns)
    yield "illegal actions", lambda: apart("illegal_actions", few[:3], max(turns, 2000))
    yield "step after done", lambda: apart("after_the_end", few, turns)
    yield "oracle", lambda: apart("oracle", seeds[:50], turns)
    yield "tasks", lambda: apart("tasks", plan.time_limit_seconds / 2)
    held = [plan.held_out.start + at for at in range(min(plan.episodes, plan.held_out.count))]
    yield "held out", lambda: apart("held_out", seeds, held)


def _apart(plan: Plan, server: ForkServer, name: str, *arguments: Any) -> Any:
    """What a function of `conduct` returns in a new process of the environment."""
    with closing(Isolated(server, time_limit_seconds=plan.time_limit_seconds)) as isolated:
        return isolated.call(f"{_HERE}:{name}", *arguments)


def _walks(plan: Plan, server: ForkServer, seeds: Sequence[int], batch: int, apart: bool, stream: int | None) -> Walks:
    """Walks in a new process. Where it is lost, each seed is walked alone: then it is known which one was played."""
    walk = partial(_apart, plan, server, "walk_here", seeds)
    try:
        found: Walks = walk(batch, plan.longest, not apart, stream)
    except EnvironmentLost:
        walk(1, plan.longest, True, stream)
        raise
    return found


def _determinism(plan: Plan, one: ForkServer, other: ForkServer, seeds: Sequence[int]) -> list[Finding]:
    """The same episodes twice: in another process, another order, another batch size; and what they showed."""
    first = _walks(plan, one, seeds, _BATCH, False, None)
    again = _walks(plan, other, seeds[::-1], _OTHER_BATCH, True, None)
    by_seed = {walk.seed: walk for walk in again.walks}
    different = [said for walk in first.walks if (said := walk.difference(by_seed[walk.seed]))]
    if different:
        said = f"{len(different)} of {len(seeds)} episodes differ in another process, order and batch size: "
        finding = Finding("determinism", "failed", said + different[0])
    else:
        said = f"{len(seeds)} episodes, {first.steps} steps: equal in another process, order and batch size"
        finding = Finding("determinism", "ok", said)
    return [finding, *_seen(first)]


def _seen(walks: Walks) -> Iterator[Finding]:
    breaches = [breach for walk in walks.walks for breach in walk.breaches]
    if breaches:
        said = f"{len(breaches)} breaches, such as {breaches[0]}"
        yield Finding("rewards and endings", "failed", said)
    else:
        ended = sum(walk.done for walk in walks.walks)
        said = f"finite and consistent; {ended} of {len(walks.walks)} episodes ended"
        yield Finding("rewards and endings", "ok", said)
    shown = sum(len(walk.turns) for walk in walks.walks)
    unusual = "".join(f"; {count} with {name}" for name, count in walks.unusual.items())
    said = f"{walks.characters / max(1, shown):.0f} characters on average, at most {walks.longest}{unusual}"
    yield Finding("observations", "failed" if walks.longest > LONGEST_OBSERVATION else "note", said)
    resets, steps = len(walks.walks) / max(walks.reset_seconds, 1e-9), walks.steps / max(walks.step_seconds, 1e-9)
    yield Finding("speed", "note", f"{steps:,.0f} steps/s, {resets:,.0f} resets/s")


def _seeding(plan: Plan, server: ForkServer, seeds: Sequence[int]) -> list[Finding]:
    """Whether seeds matter: episodes of different seeds, with the same draws, are not all the same. Where random play
    cannot tell them apart, a better player may."""
    walks = _walks(plan, server, seeds, _BATCH, False, 0)
    different = len({tuple(digest for digest, _ in walk.turns) for walk in walks.walks})
    starts = len({walk.turns[0][0] for walk in walks.walks})
    said = f"{len(seeds)} seeds: {starts} different starts, {different} different episodes under the same draws"
    return [Finding("seeding", "ok" if different > 1 or len(seeds) < 2 else "note", said)]


def require_passed(findings: Sequence[Finding], name: str) -> None:
    """Raise BadInput where a check failed, naming those."""
    failed = [finding.check for finding in findings if finding.outcome == "failed"]
    if failed:
        raise BadInput(
            f"{name} fails {len(failed)} of {len(findings)} checks: {', '.join(failed)}",
            expected="what an environment promises (docs/environment_class.md)",
            next_step="correct the environment, then check it again",
        )
