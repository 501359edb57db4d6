"""Uses: which outputs the experiences that guided a round's episodes pay, and what outputs earn without any use.

The score of a text belongs to the output that wrote the version used (`Retrieval.generation_id`), so an updated or
merged entry pays the output that last wrote it. Of several experiences that guided an episode (top_k) each is used, and
each earns the whole outcome. Episodes that an environment broke (`stop_reason` error) say nothing
about an experience: they earn no credit and nothing is compared with them; :func:`credit_metrics` counts them.
What a use earns is up to the rule of credit (`rules/`). Pure functions over rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from crl.config import ExtractorObjective
from crl.credit.buffer import Earned
from crl.errors import RecordDamaged
from crl.protocols import StopReason
from crl.records import Credit, Critique, Distillation, EntryScore, Episode, Metric, Retrieval, UseReward


def usable(episode: Episode) -> bool:
    """Whether an episode ended by the rules of its environment, so that its outcome means something."""
    return episode.stop_reason != StopReason.error


def outcome(episode: Episode) -> float:
    """+1 for success, -1 for failure."""
    return 1.0 if episode.success else -1.0


def free_means(episodes: Iterable[Episode]) -> dict[str, float]:
    """Mean outcome (-1 to 1) of the free members of each episode's group, by episode id; absent without any."""
    listed = list(episodes)
    outcomes: dict[tuple[int, str, int], list[float]] = defaultdict(list)
    for episode in listed:
        if usable(episode) and not episode.guided:
            outcomes[episode.round, episode.family, episode.group].append(outcome(episode))
    means = {key: sum(values) / len(values) for key, values in outcomes.items()}
    keys = {episode.episode_id: (episode.round, episode.family, episode.group) for episode in listed}
    return {episode_id: means[key] for episode_id, key in keys.items() if key in means}


def chosen_by_episode(retrievals: Iterable[Retrieval]) -> dict[str, list[Retrieval]]:
    """The chosen retrievals of each guided episode, in the order shown: by score, the better rank first of equals."""
    return as_shown(row for row in retrievals if row.chosen)


def as_shown(retrievals: Iterable[Retrieval]) -> dict[str, list[Retrieval]]:
    """Retrievals by episode, in the order in which a prompt shows them."""
    found: dict[str, list[Retrieval]] = defaultdict(list)
    for row in retrievals:
        found[row.episode_id].append(row)
    return {name: sorted(rows, key=lambda row: (-row.score, row.rank)) for name, rows in found.items()}


def credits_of(
    episodes: Sequence[Episode], retrievals: Iterable[Retrieval], critiques: Iterable[Critique] = ()
) -> list[Credit]:
    """One credit per experience of a usable guided episode, in the order of `episodes` and as they were shown.

    `retrievals` are the rows of the round's plan: the chosen ones of an episode say which output wrote each text. What
    the actor made of a text (`critiques`) is credited to that output too. Raises RecordDamaged where a guided episode
    has no chosen retrieval, or those of other entries or versions, and where an episode was not played
    by its verdict.
    """
    _check_played_by_verdicts(episodes, critiques)
    chosen = chosen_by_episode(retrievals)
    unguided = free_means(episodes)
    credits = []
    for episode in episodes:
        if not (episode.guided and usable(episode)):
            continue
        rows = chosen.get(episode.episode_id, [])
        shown = list(zip(episode.entry_ids, episode.content_digests, strict=True))
        if not rows or [(row.entry_id, row.content_digest) for row in rows] != shown:
            played = ", ".join(f"{name} ({digest})" for name, digest in shown)
            found = ", ".join(f"{row.entry_id} ({row.content_digest})" for row in rows) or "nothing"
            raise RecordDamaged(
                f"guided episode {episode.episode_id} was shown {played}, its retrieval chose {found}",
                expected="the chosen retrievals of the round's plan",
                where=f"round {episode.round}",
                next_step="run `crl verify` on the run",
            )
        earned, free_mean = outcome(episode), unguided.get(episode.episode_id)
        credits += [
            Credit(
                round=episode.round,
                episode_id=episode.episode_id,
                entry_id=row.entry_id,
                content_digest=row.content_digest,
                generation_id=row.generation_id,
                outcome=earned,
                free_mean=free_mean,
                guided_minus_free=None if free_mean is None else earned - free_mean,
            )
            for row in rows
        ]
    return credits


def _check_played_by_verdicts(episodes: Iterable[Episode], critiques: Iterable[Critique]) -> None:
    texts = {row.episode_id: row.text for row in critiques}
    for episode in episodes:
        if episode.episode_id in texts and episode.experience != texts[episode.episode_id]:
            raise RecordDamaged(
                f"episode {episode.episode_id} was shown {episode.experience!r}",
                expected=f"what the actor's verdict left of the experience: {texts[episode.episode_id]!r}",
                where=f"round {episode.round}",
                next_step="run `crl verify` on the run",
            )


def uses_of(
    episodes: Iterable[Episode],
    credits: Iterable[Credit],
    retrievals: Iterable[Retrieval],
    critiques: Iterable[Critique] = (),
) -> list[UseReward]:
    """Every use of a round, in the order of `episodes` and as they were shown, with its outcome as r of eq. 8: s_c + r.

    `credits` are those of the episodes; `retrievals` say who wrote what the actor rejected, which earns s_c alone.
    Raises RecordDamaged for a rejected experience without a retrieval.
    """
    credited: dict[str, list[Credit]] = defaultdict(list)
    for credit in credits:
        credited[credit.episode_id].append(credit)
    chosen = chosen_by_episode(retrievals)
    by_episode = {row.episode_id: row for row in critiques}
    uses = []
    for episode in episodes:
        critique = by_episode.get(episode.episode_id)
        score = critique.score if critique else None
        for credit in credited.get(episode.episode_id, []):
            use = UseReward(
                round=credit.round, episode_id=credit.episode_id, entry_id=credit.entry_id,
                generation_id=credit.generation_id, basis="outcome", outcome=credit.outcome, usefulness=None,
                critic_score=score, reward=0.0,
            )  # fmt: skip
            uses.append(with_reward(use, "outcome", credit.outcome))
        if episode.episode_id not in credited and critique is not None and critique.verdict == "reject":
            uses.append(_rejected(critique, next(iter(chosen.get(episode.episode_id, [])), None)))
    return uses


def with_reward(use: UseReward, basis: str, r: float) -> UseReward:
    """The use with what a rule takes for r of eq. 8: it earns s_c + r."""
    return replace(use, basis=basis, reward=r + (use.critic_score or 0.0))


def _rejected(critique: Critique, retrieval: Retrieval | None) -> UseReward:
    if retrieval is None or critique.score is None:
        raise RecordDamaged(
            f"the actor rejected {critique.entry_id} for episode {critique.episode_id}, which nothing chose for it",
            expected="the chosen retrieval of the round's plan, and a score",
            where=f"round {critique.round}",
            next_step="run `crl verify` on the run",
        )
    return UseReward(
        round=critique.round, episode_id=critique.episode_id, entry_id=critique.entry_id,
        generation_id=retrieval.generation_id, basis="none", outcome=None, usefulness=None,
        critic_score=critique.score, reward=critique.score,
    )  # fmt: skip


def earned_when_written(
    outputs: Iterable[Distillation], free_means: Mapping[str, float], config: ExtractorObjective
) -> list[Earned]:
    """What malformed outputs and `return` earn at once and for all, in the order of `outputs`.

    `free_means` is :func:`free_means` of the round's episodes, for `return_reward: free_mean`: a
    `return` whose group has no free member stays unscored.
    """
    found = []
    for row in outputs:
        setting = {"malformed": config.malformed_reward, "return": config.return_reward}.get(row.verdict, "none")
        reward = free_means.get(row.episode_id or "") if setting == "free_mean" else setting
        if reward is not None and reward != "none":
            found.append(Earned(row.generation_id, float(reward), row.verdict))
    return found


def entry_scores(previous: Iterable[EntryScore], credits: Iterable[Credit]) -> list[EntryScore]:
    """Cumulative usefulness of every entry ever used, by entry id: the previous scores and this round's credits.

    What was earned with earlier words says nothing about a text: an entry that was rewritten begins again with its
    first use since.
    """
    scores = {score.entry_id: score for score in previous}
    for credit in credits:
        old = scores.get(credit.entry_id)
        if old is not None and old.content_digest != credit.content_digest:
            old = None
        uses = (old.uses if old else 0) + 1
        total = (old.mean_outcome * old.uses if old else 0.0) + credit.outcome
        # Outcomes are whole numbers, so rounding the running sum keeps the mean exact however long the run is.
        scores[credit.entry_id] = EntryScore(
            entry_id=credit.entry_id,
            content_digest=credit.content_digest,
            uses=uses,
            mean_outcome=round(total) / uses,
            last_used_round=credit.round,
        )
    return [scores[entry_id] for entry_id in sorted(scores)]


def credit_metrics(
    episodes: Sequence[Episode], credits: Sequence[Credit], *, round: int, stage: str = "credit"
) -> list[Metric]:
    """What was left out of credit and advantages, and guided minus free."""
    errored = sum(not usable(episode) for episode in episodes)
    metrics = {"episodes_errored": float(errored), "credits": float(len(credits))}
    differences = [credit.guided_minus_free for credit in credits if credit.guided_minus_free is not None]
    if differences:
        metrics["guided_minus_free"] = sum(differences) / len(differences)
    alarms = {"episodes_errored": f"{errored} episodes broke and train nothing" if errored else None}
    return [
        Metric(round=round, stage=stage, name=name, value=value, alarm=alarms.get(name))
        for name, value in metrics.items()
    ]
