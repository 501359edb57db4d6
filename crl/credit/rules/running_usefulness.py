"""A use earns what its entry is worth after it: U ← decay·U + (1 − decay)·outcome, as Skill1 (2605.06130) keeps it.

U starts at 0 and is divided by 1 − decay^uses, which makes it a mean of the outcomes at any time: undivided, the first
uses of an entry would earn a twentieth of what they say, beside a malformed output's whole penalty. A text that was
rewritten starts anew: its writer answers for its own words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from crl.credit.rules import Round, Rule, Scored
from crl.credit.uses import with_reward
from crl.records import Credit, EntryUsefulness


def score(round: Round, before: Sequence[EntryUsefulness]) -> Scored:
    """See the module; kept is the usefulness of every entry so far, by entry id."""
    usefulness = {row.entry_id: row for row in before}
    credits = {(row.episode_id, row.entry_id): row for row in round.credits}
    uses = []
    for use in round.uses:
        credit = credits.get((use.episode_id, use.entry_id))
        if credit is not None:
            now = _used_again(usefulness.get(use.entry_id), credit, round.config.usefulness_decay)
            usefulness[use.entry_id] = now
            use = replace(with_reward(use, "usefulness", now.usefulness), usefulness=now.usefulness)
        uses.append(use)
    return Scored(uses, round.earned(uses), after=[usefulness[entry_id] for entry_id in sorted(usefulness)])


def _used_again(before: EntryUsefulness | None, credit: Credit, decay: float) -> EntryUsefulness:
    if before is not None and before.content_digest != credit.content_digest:
        before = None
    uses, value = (before.uses, before.usefulness) if before else (0, 0.0)
    undivided = decay * value * (1 - decay**uses) + (1 - decay) * credit.outcome
    # Rounding may leave a mean of ones a last digit above 1.
    mean = min(1.0, max(-1.0, undivided / (1 - decay ** (uses + 1))))
    return EntryUsefulness(
        entry_id=credit.entry_id, content_digest=credit.content_digest, uses=uses + 1, usefulness=mean
    )


RULE = Rule(score, keeps=EntryUsefulness)
