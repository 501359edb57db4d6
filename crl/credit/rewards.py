"""What a use of an experience earns for the output that wrote it: outcome, its variants, the actor's verdict (eq. 8).

The paper's reward of a use is the outcome of the episode, ±1. `extractor_objective.credit` offers two more:

- `guided_minus_free` subtracts the mean outcome of the unguided rollouts of the same group, so that an experience is
  not rewarded for a task that is won without it. Without any unguided rollout nothing is subtracted: such a use earns
  its outcome, and :func:`reward_metrics` counts it.
- `running_usefulness` is what the entry is worth after the use, U ← decay·U + (1 − decay)·outcome, as
  Skill1 (2605.06130) keeps it. U starts at 0 and is divided by 1 − decay^uses, which makes it a mean of the outcomes
  at any time: undivided, the first uses of an entry would earn a twentieth of what they say, beside a malformed
  output's whole penalty. A text that was rewritten starts anew: its writer answers for its own words.

With the actor-critic a use earns s_c + r (eq. 8); what was rejected has no outcome and earns s_c alone. Pure functions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from crl.config import ExtractorObjective
from crl.credit.credit import ALARM_SHARE, shown_by_episode
from crl.errors import RecordDamaged
from crl.records import Credit, EntryUsefulness, Episode, Judgment, Metric, Retrieval, UseReward

VERDICTS = ("accept", "refine", "reject", "malformed")


def use_rewards(
    episodes: Iterable[Episode],
    credits: Iterable[Credit],
    retrievals: Iterable[Retrieval],
    judgments: Iterable[Judgment],
    previous: Iterable[EntryUsefulness],
    config: ExtractorObjective,
) -> tuple[list[UseReward], list[EntryUsefulness]]:
    """One reward per use, in the order of `episodes`, and the running usefulness of every entry so far, by entry id.

    `credits` are those of the episodes; `retrievals` say who wrote what was rejected. `previous` is the usefulness
    after the round before; it stays empty unless `config.credit` is `running_usefulness`. Raises RecordDamaged for a
    rejected experience without a retrieval.
    """
    credited: dict[str, list[Credit]] = defaultdict(list)
    for credit in credits:
        credited[credit.episode_id].append(credit)
    chosen = shown_by_episode(retrievals)
    judged = {row.episode_id: row for row in judgments}
    usefulness = {row.entry_id: row for row in previous}
    rewards = []
    for episode in episodes:
        judgment = judged.get(episode.episode_id)
        for credit in credited.get(episode.episode_id, []):
            if config.credit == "running_usefulness":
                before = usefulness.get(credit.entry_id)
                usefulness[credit.entry_id] = _used_again(before, credit, config.usefulness_decay)
            rewards.append(_earned(credit, judgment, usefulness.get(credit.entry_id), config))
        if episode.episode_id not in credited and judgment is not None and judgment.verdict == "reject":
            rewards.append(_rejected(judgment, next(iter(chosen.get(episode.episode_id, [])), None)))
    return rewards, [usefulness[entry_id] for entry_id in sorted(usefulness)]


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


def _earned(
    credit: Credit, judgment: Judgment | None, usefulness: EntryUsefulness | None, config: ExtractorObjective
) -> UseReward:
    basis, reward = "outcome", credit.outcome
    if config.credit == "guided_minus_free" and credit.guided_minus_free is not None:
        basis, reward = "guided_minus_free", credit.guided_minus_free
    elif config.credit == "running_usefulness" and usefulness is not None:
        basis, reward = "usefulness", usefulness.usefulness
    score = judgment.score if judgment else None
    return UseReward(
        round=credit.round,
        episode_id=credit.episode_id,
        entry_id=credit.entry_id,
        generation_id=credit.generation_id,
        basis=basis,
        outcome=credit.outcome,
        usefulness=reward if basis == "usefulness" else None,
        critic_score=score,
        reward=reward + (score or 0.0),
    )


def _rejected(judgment: Judgment, retrieval: Retrieval | None) -> UseReward:
    if retrieval is None or judgment.score is None:
        raise RecordDamaged(
            f"the actor rejected {judgment.entry_id} for episode {judgment.episode_id}, which nothing chose for it",
            expected="the chosen retrieval of the round's plan, and a score",
            where=f"round {judgment.round}",
            next_step="run `crl verify` on the run",
        )
    return UseReward(
        round=judgment.round,
        episode_id=judgment.episode_id,
        entry_id=judgment.entry_id,
        generation_id=retrieval.generation_id,
        basis="none",
        outcome=None,
        usefulness=None,
        critic_score=judgment.score,
        reward=judgment.score,
    )


def reward_metrics(
    rewards: Sequence[UseReward], config: ExtractorObjective, *, round: int, stage: str = "credit"
) -> list[Metric]:
    """How many uses had no unguided rollout to be compared with, where the difference is rewarded; else nothing."""
    if config.credit != "guided_minus_free":
        return []
    alone = sum(row.basis == "outcome" for row in rewards)
    return [Metric(round=round, stage=stage, name="uses_without_unguided", value=float(alone), alarm=None)]


def judgment_metrics(judgments: Sequence[Judgment], *, round: int, stage: str = "credit") -> list[Metric]:
    """Share of every verdict of a round; malformed and rejected alarm above :data:`crl.credit.credit.ALARM_SHARE`."""
    if not judgments:
        return []
    counts = Counter(row.verdict for row in judgments)
    consequences = {"malformed": "experiences are shown unjudged", "reject": "experiences hardly guide any more"}
    rows = []
    for verdict in VERDICTS:
        share = counts[verdict] / len(judgments)
        alarm = None
        if verdict in consequences and share > ALARM_SHARE:
            alarm = f"{share:.0%} of the verdicts are {verdict} (bound {ALARM_SHARE:.0%}): {consequences[verdict]}"
        rows.append(Metric(round=round, stage=stage, name=f"verdict_{verdict}", value=share, alarm=alarm))
    return rows
