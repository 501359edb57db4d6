"""A use earns what its entry is worth after it: U ← decay·U + (1 − decay)·outcome, as Skill1 (2605.06130) keeps it.

U starts at 0 and is divided by 1 − decay^uses, which makes it a mean of the outcomes at any time: undivided, the first
uses of an entry would earn a twentieth of what they say, beside a malformed output's whole penalty. A text that was
rewritten starts anew: its writer answers for its own words.
"""

from __future__ import annotations

from collections.abc import Sequence

from crl.credit.rules import Round, Rule, Scored
from crl.credit.uses import Use
from crl.records import EntryUsefulness, UseReward


def score(round: Round, before: Sequence[EntryUsefulness]) -> Scored:
    """See the module; kept is the usefulness of every entry so far, by entry id."""
    usefulness = {row.entry_id: row for row in before}
    uses: list[UseReward] = []
    for use in round.uses:
        if use.outcome is None:
            uses.append(use.rewarded("usefulness", None))
            continue
        now = _used_again(usefulness.get(use.entry_id), use, use.outcome, round.config.usefulness_decay)
        usefulness[use.entry_id] = now
        uses.append(use.rewarded("usefulness", now.usefulness, usefulness=now.usefulness))
    return Scored(uses, round.earned(uses), after=[usefulness[entry_id] for entry_id in sorted(usefulness)])


def _used_again(before: EntryUsefulness | None, use: Use, outcome: float, decay: float) -> EntryUsefulness:
    if before is not None and before.content_digest != use.content_digest:
        before = None
    uses, value = (before.uses, before.usefulness) if before else (0, 0.0)
    undivided = decay * value * (1 - decay**uses) + (1 - decay) * outcome
    # Rounding may leave a mean of ones a last digit above 1.
    mean = min(1.0, max(-1.0, undivided / (1 - decay ** (uses + 1))))
    return EntryUsefulness(entry_id=use.entry_id, content_digest=use.content_digest, uses=uses + 1, usefulness=mean)


RULE = Rule(score, keeps=EntryUsefulness)
