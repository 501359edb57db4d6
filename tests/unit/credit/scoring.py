"""A round for a rule of credit, with what a test does not care about left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from crl.config import ExtractorObjective
from crl.credit.rules import Round, Scored, TaskKey, rule_of
from crl.records import UseReward


def scored(
    credit: str,
    uses: Sequence[UseReward] = (),
    *,
    before: Sequence[Any] = (),
    earners: Callable[[UseReward], Sequence[str]] = lambda use: [use.generation_id],
    own: Mapping[str, TaskKey] | None = None,
    decay: float = 0.95,
    **rows: Any,
) -> Scored:
    """What a rule says of uses; by default the output that wrote a text earns alone, and none has a task of its own."""
    config = ExtractorObjective.model_validate({"credit": credit, "usefulness_decay": decay})
    given = {"episodes": [], "retrievals": [], "credits": [], "distilled": [], **rows}
    played = Round(config=config, uses=uses, earners=earners, own_task=(own or {}).get, **given)
    return rule_of(credit).score(played, before)


def use_of(
    generation_id: str, outcome: float | None, episode_id: str, *, entry: str = "m", score: float | None = None
) -> UseReward:
    """A use that earns its outcome and the actor's verdict."""
    return UseReward(
        round=2, episode_id=episode_id, entry_id=entry, generation_id=generation_id,
        basis="none" if outcome is None else "outcome", outcome=outcome, usefulness=None, critic_score=score,
        reward=(outcome or 0.0) + (score or 0.0),
    )  # fmt: skip
