"""Health of a round: metrics about what the extractor wrote, whether it is true, and what the updates can learn from.

Pure functions over plain columns, which the stage `health` of each recipe gathers and writes with :func:`write_health`.
Nothing here is ever trained on: whether an experience is true is known to the environment alone, and no stage that
feeds training reads the stage that says so.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from crl.credit.advantages import SMALLEST_STD
from crl.credit.uses import usable
from crl.records import Episode, Metric
from crl.rounds.alarms import Metrics, counters, health_metrics, mismatch_alarms, mismatch_causes
from crl.rounds.context import StageContext
from crl.rounds.fall_back import counted_anew, guard_of
from crl.rounds.judge_health import judge_metrics, verdicts_read
from crl.rounds.stage import BEFORE, maker_of

VERDICTS = ("malformed", "return", "add", "update", "mixed", "merge")
"""Kinds of extractor outputs."""
ALARM_SHARE = 0.5
"""Above this share of malformed or `return` outputs the extractor is drifting to outputs that are never scored."""
RIGHT = 1.0
"""Truth of an experience that is fully right."""
FEWEST_EXPERIENCES = 8
"""With fewer experiences, one of them being most of them says nothing."""
UPDATE_METRICS = ("ratio_mean", "ratio_max", "logprob_mismatch", "mismatch_kl")
"""Metrics of an update that are repeated as they are; its two clipped shares are summed up."""
CUT = "experiences_cut_by_embedder"


@dataclass(frozen=True, slots=True)
class ExperienceTruth:
    """One experience text, written, held or shown."""

    family: str
    text: str
    truth: float | None = None
    """1 fully right, 0 wrong, between: partly; None: it claims nothing, or nobody knows."""


def output_shares(verdicts: Sequence[str]) -> Metrics:
    """Share of every kind of extractor output (`share_malformed`, …); none without outputs."""
    counts = Counter(verdicts)
    return {f"share_{verdict}": counts[verdict] / len(verdicts) for verdict in VERDICTS} if verdicts else {}


def output_alarms(shares: Metrics) -> dict[str, str]:
    """Which of :func:`output_shares` are above :data:`ALARM_SHARE` and should not be."""
    return {
        f"share_{verdict}": f"{share:.0%} of the extractor's outputs are {verdict} (bound {ALARM_SHARE:.0%})"
        for verdict in ("malformed", "return")
        if (share := shares.get(f"share_{verdict}", 0.0)) > ALARM_SHARE
    }


def reading_metrics(distillations: Sequence[tuple[int, int]]) -> tuple[Metrics, dict[str, str]]:
    """What the extractor could read of the games, and alarms: from (turns, turns shown in full) of each distillation.

    `turns_shown` is the share of all turns of all distilled episodes, `prompts_cut` that of the prompts that lack any.
    One is an alarm: an extractor that does not see what won or lost a game can only guess.
    """
    turns, shown = (sum(counts) for counts in zip(*distillations, strict=True)) if distillations else (0, 0)
    if not turns:
        return {}, {}
    cut = sum(each_shown < each for each, each_shown in distillations)
    metrics = {"turns_shown": shown / turns, "prompts_cut": cut / len(distillations)}
    alarm = (
        f"{cut} of {len(distillations)} extractor prompts were cut and show {shown / turns:.0%} of the turns: raise "
        "extractor.context"
    )
    return metrics, {"prompts_cut": alarm} if cut else {}


def written_metrics(experiences: Sequence[ExperienceTruth]) -> Metrics:
    """How many experiences were written, and the share of distinct ones among them."""
    metrics: Metrics = {"experiences_new": float(len(experiences))}
    if experiences:
        metrics["experiences_distinct"] = len(
            {(experience.family, experience.text) for experience in experiences}
        ) / len(experiences)
    return metrics


def cut_metrics(cuts: Sequence[bool]) -> Metrics:
    """`experiences_cut_by_embedder`: the share of the new experiences that the embedder reads only the beginning of."""
    return {CUT: sum(cuts) / len(cuts)} if cuts else {}


def cut_alarm(
    metrics: Mapping[str, float], embedder: str = "retrieval.embedder", longest: str = "distill.max_characters"
) -> dict[str, str]:
    """What to say where the embedder cut an experience, by the metric's name; the keys name the settings that would
    help."""
    share = metrics.get(CUT, 0.0)
    told = (
        f"the embedder reads only the beginning of {share:.0%} of the new experiences, which are found by that alone; "
        f"choose one that reads longer texts ({embedder}), or lower {longest}"
    )
    return {CUT: told} if share else {}


def one_text_share(experiences: Sequence[ExperienceTruth]) -> Metrics:
    """`experiences_one_text`: the share of the experiences that the most frequent text has; nothing of fewer than
    :data:`FEWEST_EXPERIENCES`.

    Repetitions of what is known to be right do not count: in a family that has one right answer, every experience of a
    good extractor is that one.
    """
    if len(experiences) < FEWEST_EXPERIENCES:
        return {}
    doubtful = Counter(experience.text for experience in experiences if experience.truth != RIGHT)
    return {"experiences_one_text": max(doubtful.values(), default=0) / len(experiences)}


def truth_share(name: str, experiences: Sequence[ExperienceTruth], knowing: Iterable[str]) -> Metrics:
    """Share of the experiences that are fully right, of the families `knowing`, whose environment knows; nothing of
    none."""
    known = frozenset(knowing)
    right = [experience.truth == RIGHT for experience in experiences if experience.family in known]
    return {name: sum(right) / len(right)} if right else {}


def claim_share(name: str, experiences: Sequence[ExperienceTruth], knowing: Iterable[str]) -> Metrics:
    """Share of the experiences that claim anything that can be right or wrong, likewise."""
    known = frozenset(knowing)
    claims = [experience.truth is not None for experience in experiences if experience.family in known]
    return {name: sum(claims) / len(claims)} if claims else {}


def coverage(
    families: Sequence[str], held: Iterable[str], experiences: Iterable[ExperienceTruth], knowing: Sequence[str]
) -> Metrics:
    """Share of the task families with an experience, and of those whose environment knows with at least one right
    experience.

    `held` are the families of the bank's entries, `experiences` those of its texts whose truth is known.
    """
    metrics: Metrics = {"families_with_experience": len(set(held) & set(families)) / len(families)}
    if knowing:
        right = {experience.family for experience in experiences if experience.truth == RIGHT}
        metrics["families_with_true_experience"] = len(right & set(knowing)) / len(knowing)
    return metrics


def play_metrics(episodes: Sequence[Episode]) -> Metrics:
    """Success of all usable episodes, and of the guided less that of the free ones (-1 to 1)."""
    played = [episode for episode in episodes if usable(episode)]
    guided, free = ([each.success for each in played if each.guided is guided] for guided in (True, False))
    metrics: Metrics = {}
    if played:
        metrics["success"] = (sum(guided) + sum(free)) / len(played)
    if guided and free:
        metrics["success_guided_minus_free"] = sum(guided) / len(guided) - sum(free) / len(free)
    return metrics


def token_metrics(name: str, episodes: Sequence[Episode]) -> Metrics:
    """Tokens that playing these episodes read and sampled."""
    return {
        f"{name}_tokens_read": float(sum(row.tokens_read for row in episodes)),
        f"{name}_tokens_sampled": float(sum(row.tokens_sampled for row in episodes)),
    }


def group_metrics(episodes: Sequence[Episode], *, subgroups: bool) -> Metrics:
    """Share of groups whose rewards are all equal, so that every advantage of theirs is 0 (eq. 5).

    With `subgroups` each stream has a baseline of its own, and the group counts if none of them varies.
    """
    rewards: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for episode in episodes:
        if usable(episode):
            rewards[episode.family, episode.group][episode.stream if subgroups else ""].append(episode.reward)
    if not rewards:
        return {}
    equal = [all(max(values) - min(values) < SMALLEST_STD for values in group.values()) for group in rewards.values()]
    return {"actor_groups_equal": sum(equal) / len(equal)}


def reward_metrics(rewards: Sequence[float], advantages: Sequence[float]) -> Metrics:
    """The distribution of the rewards of the extractor's batch; nothing without one.

    `extractor_reward_equal` is the share of the most frequent reward, `extractor_without_gradient` that of samples
    whose advantage is 0.
    """
    if not rewards:
        return {}
    count = len(rewards)
    mean = sum(rewards) / count
    return {
        "extractor_reward_mean": mean,
        "extractor_reward_std": (sum((reward - mean) ** 2 for reward in rewards) / count) ** 0.5,
        "extractor_reward_at_minimum": rewards.count(min(rewards)) / count,
        "extractor_reward_equal": Counter(rewards).most_common(1)[0][1] / count,
        "extractor_without_gradient": sum(abs(each) < SMALLEST_STD for each in advantages) / count,
    }


def update_metrics(role: str, metrics: Mapping[str, float]) -> Metrics:
    """Steps of a role's update, the shares of its gradient, and where it took a step, the clipped share of the trained
    tokens, ratio and gap."""
    found = {f"{role}_stepped": metrics["stepped"]} if "stepped" in metrics else {}
    found |= {f"{role}_{name}": value for name, value in metrics.items() if name.endswith("_share")}
    if "ratio_mean" in metrics:
        found |= {f"{role}_{name}": metrics[name] for name in UPDATE_METRICS if name in metrics}
        found[f"{role}_clipped"] = metrics.get("clipped_low", 0.0) + metrics.get("clipped_high", 0.0)
    return found


def age_metrics(name: str, ages: Sequence[int]) -> Metrics:
    """Mean and largest of ages in rounds."""
    return {f"{name}_mean": sum(ages) / len(ages), f"{name}_max": float(max(ages))} if ages else {}


def tokens_of(written: pa.Table) -> tuple[int, int]:
    """Tokens of token records (`Generation`) that were read, and that were sampled."""
    sampled = pc.sum(pc.list_flatten(written["loss_mask"])).as_py() or 0
    return (pc.sum(pc.list_value_length(written["token_ids"])).as_py() or 0) - sampled, sampled


def mismatch_alarms_of(ctx: StageContext, metrics: Mapping[str, float]) -> dict[str, str]:
    """Alarms where sampler and trainer of a role disagree, with what is known here of the causes."""

    def causes(owner: str) -> list[str]:
        from crl.policies.machine import computed

        config = ctx.services.model_path(owner) / "config.json"
        return mismatch_causes(computed(ctx.method.role(owner)), json.loads(config.read_text(encoding="utf-8")))

    return mismatch_alarms(metrics, causes)


def write_health(
    ctx: StageContext, metrics: Mapping[str, float], trained: Set[str], alarms: Mapping[str, str] | None = None
) -> None:
    """Write the metrics of a round (:func:`health_metrics`); `trained` are the roles that it trains.

    After a fall back, or a fork to another recipe or to other settings of it, rounds with a sign of collapse are
    counted anew: the signs that were counted may be gone for good, or nothing that this recipe shows.
    """
    previous = counted_anew(ctx.metrics(BEFORE))
    if maker_of(ctx.recipe, ctx.method, ctx.round - 1)[1].recipe != ctx.method.recipe:
        previous = {name: value for name, value in previous.items() if name not in counters()}
    said, alarmed = judge_metrics(verdicts_read(ctx), previous)
    metrics, alarms = {**metrics, **said}, {**(alarms or {}), **alarmed}
    guard = guard_of(ctx, previous)
    ctx.write(Metric, health_metrics(metrics, previous, trained, round=ctx.round, alarms=alarms, guard=guard))
