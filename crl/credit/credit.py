"""Credit: which extractor output earned what. Pure functions over rows; numpy is not even needed.

The score of a text belongs to the output that wrote the version used (`Retrieval.generation_id`), so an updated or
merged entry pays the output that last wrote it. Of several experiences that guided an episode (top_k) each is used, and
each earns the whole outcome. Episodes that an environment broke (`stop_reason` error) say nothing
about an experience: they earn no credit and nothing is compared with them; :func:`credit_metrics` counts them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from crl.errors import RecordDamaged
from crl.protocols import StopReason
from crl.records import Credit, Distillation, EntryScore, Episode, Judgment, Metric, Retrieval

VERDICTS = ("malformed", "return", "add", "update", "mixed", "merge")
ALARM_SHARE = 0.5
"""Above this share of malformed or `return` outputs the extractor is drifting to outputs that are never
scored."""


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


def shown_by_episode(retrievals: Iterable[Retrieval]) -> dict[str, list[Retrieval]]:
    """The chosen retrievals of each guided episode, in the order shown: by score, the better rank first of equals."""
    found: dict[str, list[Retrieval]] = defaultdict(list)
    for row in retrievals:
        if row.chosen:
            found[row.episode_id].append(row)
    return {name: sorted(rows, key=lambda row: (-row.score, row.rank)) for name, rows in found.items()}


def credits_of(
    episodes: Sequence[Episode], retrievals: Iterable[Retrieval], judgments: Iterable[Judgment] = ()
) -> list[Credit]:
    """One credit per experience of a usable guided episode, in the order of `episodes` and as they were shown.

    `retrievals` are the rows of the round's plan: the chosen ones of an episode say which output wrote each text. What
    the actor made of a text (`judgments`) is credited to that output too. Raises RecordDamaged where a guided episode
    has no chosen retrieval, or those of other entries or versions, and where an episode was played otherwise than
    judged.
    """
    _check_played_as_judged(episodes, judgments)
    chosen = shown_by_episode(retrievals)
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


def _check_played_as_judged(episodes: Iterable[Episode], judgments: Iterable[Judgment]) -> None:
    texts = {row.episode_id: row.text for row in judgments}
    for episode in episodes:
        if episode.episode_id in texts and episode.experience != texts[episode.episode_id]:
            raise RecordDamaged(
                f"episode {episode.episode_id} was shown {episode.experience!r}",
                expected=f"what the actor's verdict left of the experience: {texts[episode.episode_id]!r}",
                where=f"round {episode.round}",
                next_step="run `crl verify` on the run",
            )


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
    figures = {"episodes_errored": float(errored), "credits": float(len(credits))}
    differences = [credit.guided_minus_free for credit in credits if credit.guided_minus_free is not None]
    if differences:
        figures["guided_minus_free"] = sum(differences) / len(differences)
    alarms = {"episodes_errored": f"{errored} episodes broke and train nothing" if errored else None}
    return [
        Metric(round=round, stage=stage, name=name, value=value, alarm=alarms.get(name))
        for name, value in figures.items()
    ]


def output_health(distillations: Sequence[Distillation], *, round: int, stage: str = "credit") -> list[Metric]:
    """Share of every kind of extractor output of a round; malformed and return alarm above :data:`ALARM_SHARE`."""
    if not distillations:
        return []
    counts = Counter(row.verdict for row in distillations)
    rows = []
    for verdict in VERDICTS:
        share = counts[verdict] / len(distillations)
        alarm = None
        if verdict in ("malformed", "return") and share > ALARM_SHARE:
            alarm = f"{share:.0%} of the extractor's outputs are {verdict} (bound {ALARM_SHARE:.0%})"
        rows.append(Metric(round=round, stage=stage, name=f"share_{verdict}", value=share, alarm=alarm))
    return rows
