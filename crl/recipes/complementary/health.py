"""Stage `health`: what a round says about the extractor and the updates, from recorded rows alone, without a model.

It only observes. Whether an experience is true is asked of environments that know (protocol `KnowsTruth`), for a
metric: no other stage reads this one, so nothing that trains can see it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set

import pyarrow as pa
import pyarrow.compute as pc

from crl.bank.segments import load_texts
from crl.credit.buffer import oldest_wait, ripe_items
from crl.credit.samples import output_reward
from crl.protocols import KnowsRule, KnowsTruth
from crl.recipes.complementary.config import config_of
from crl.recipes.complementary.mechanisms import Mechanism, Text
from crl.records import (
    BufferItem,
    Credit,
    Distillation,
    Episode,
    Generation,
    Operation,
    Row,
    Sample,
    Turn,
    rows_with,
)
from crl.rounds.alarms import Metrics, guidance_metrics, output_metrics, turn_metrics, unreadable_metrics
from crl.rounds.context import NEW_BANK, StageContext
from crl.rounds.health import (
    ExperienceTruth,
    age_metrics,
    claim_share,
    coverage,
    cut_alarm,
    cut_metrics,
    group_metrics,
    mismatch_alarms_of,
    one_text_share,
    output_shares,
    play_metrics,
    reading_metrics,
    reward_metrics,
    tokens_of,
    truth_share,
    update_metrics,
    write_health,
    written_metrics,
)
from crl.rounds.stage import BEFORE
from crl.rounds.weights import update_name

OUTPUTS = ("distill", "merge")
EXPERIENCES = ("add", "update", "merge")
"""Operations that write a text."""

_texts: dict[str, str] = {}
"""Texts of the bank by digest, from the last round this process looked at: most stay from round to round."""


def health(ctx: StageContext, on: Sequence[Mechanism] = ()) -> None:
    """Write the metrics of the round, whether what the models wrote is in form, and whether the run has collapsed."""
    episodes = ctx.rows(Episode, "collect")
    config = config_of(ctx.method)
    trained = {role for role in config.TRAINED if config.trains(role, ctx.round)}
    metrics = play_metrics(episodes)
    metrics |= turn_metrics(episodes, _column(ctx, Turn, "collect", "stop_reason"))
    said = ctx.table(Turn, "collect")
    metrics |= unreadable_metrics(
        [
            *said["observation"].to_pylist(),
            *said["feedback"].to_pylist(),
            *(text for each in episodes for text in (each.goal, each.last_observation, each.error)),
        ],
        zip(said["output"].to_pylist(), said["action"].to_pylist(), strict=True),
    )
    metrics["actor_tokens_read"] = float(sum(episode.tokens_read for episode in episodes))
    metrics["actor_tokens_sampled"] = float(sum(episode.tokens_sampled for episode in episodes))
    metrics["episode_tokens_sampled"] = metrics["actor_tokens_sampled"]  # to the other, mechanisms add theirs
    metrics |= group_metrics(episodes, subgroups=config.actor_objective.advantage == "subgroup")
    previous = ctx.metrics(BEFORE)
    alarms: dict[str, str] = {}
    if config.has_bank:
        metrics |= _outputs(ctx)
        read, alarms = _read(ctx)
        guidance, misled = guidance_metrics(episodes, previous)
        metrics |= read | guidance
        alarms |= misled
        truths = Truths(ctx)
        metrics |= _experiences(ctx, episodes, truths, whole=config.bank.keeps_what_is_better)
        metrics |= _training(ctx, trained)
        for mechanism in on:
            more, alarmed = mechanism.metrics(ctx, truths.right)
            metrics |= {name: metrics.get(name, 0.0) + value for name, value in more.items()}
            alarms |= alarmed
    for role in sorted(ctx.recipe.trains):
        metrics |= update_metrics(role, ctx.metrics(update_name(role)))
    alarms |= cut_alarm(metrics) | mismatch_alarms_of(ctx, metrics)
    write_health(ctx, metrics, trained, alarms)


def _outputs(ctx: StageContext) -> Metrics:
    distilled, merged = (_column(ctx, Distillation, stage, "verdict") for stage in OUTPUTS)
    metrics = output_shares([*distilled, *merged])
    if distilled:  # merges come in some rounds only, and are never malformed or `return` for long
        without = [verdict in ("malformed", "return") for verdict in distilled]
        metrics["share_without_experience"] = sum(without) / len(without)
    written = pa.concat_tables([ctx.table(Generation, stage) for stage in OUTPUTS])
    metrics |= output_metrics(written["stop_reason"].to_pylist())
    read, sampled = tokens_of(written)
    return {**metrics, "extractor_tokens_read": float(read), "extractor_tokens_sampled": float(sampled)}


def _read(ctx: StageContext) -> tuple[Metrics, dict[str, str]]:
    """What the extractor could read of the round's games."""
    table = ctx.table(Distillation, "distill")
    return reading_metrics(list(zip(table["turns"].to_pylist(), table["turns_shown"].to_pylist(), strict=True)))


class Truths:
    """The environments that know whether a text is true, by task family; each is asked once about each text."""

    def __init__(self, ctx: StageContext) -> None:
        self._environments = {
            family.name: environment
            for family in ctx.method.families
            if isinstance(environment := ctx.environment(family.name), KnowsTruth)
        }
        self._truths: dict[Text, float | None] = {}

    def whole(self, name: str, texts: Sequence[ExperienceTruth]) -> Metrics:
        """The share of texts that say the whole rule of their family, of the families whose environment knows it."""
        knowing = {name: each for name, each in self._environments.items() if isinstance(each, KnowsRule)}
        said = [knowing[each.family].whole(each.text) for each in texts if each.family in knowing]
        return {name: sum(said) / len(said)} if said else {}

    @property
    def families(self) -> list[str]:
        """Those whose environment knows."""
        return list(self._environments)

    def experience(self, family: str, text: str) -> ExperienceTruth:
        """A text with its truth."""
        if family in self._environments and (family, text) not in self._truths:
            self._truths[family, text] = self._environments[family].truth(text)
        return ExperienceTruth(family, text, self._truths.get((family, text)))

    def right(self, name: str, texts: Sequence[Text]) -> Metrics:
        """The share of texts that are fully right, as the metric `name`; nothing where nobody knows of any."""
        return truth_share(name, [self.experience(*each) for each in texts], self._environments)


def _experiences(ctx: StageContext, episodes: Iterable[Episode], truths: Truths, *, whole: bool) -> Metrics:
    distilled, merged = (_written(ctx, stage, truths.experience) for stage in OUTPUTS)
    written = [*distilled, *merged]
    used = [truths.experience(each.family, text) for each in episodes for text in each.experiences]
    bank = ctx.bank(NEW_BANK).table
    held = _held(ctx, bank, truths.families, truths.experience)
    wholes = {"experiences_whole_new": written, "experiences_whole": held, "experiences_whole_used": used}
    return {
        **{name: share for each, texts in wholes.items() if whole for name, share in truths.whole(each, texts).items()},
        **written_metrics(written),
        **cut_metrics([cut for stage in OUTPUTS for cut in _new(ctx, stage)["embedder_cut"].to_pylist()]),
        **one_text_share(distilled),
        **truth_share("experiences_true_new", written, truths.families),
        **claim_share("experiences_claiming_new", written, truths.families),
        **truth_share("experiences_true", held, truths.families),
        **claim_share("experiences_claiming", held, truths.families),
        **truth_share("experiences_true_used", used, truths.families),
        **coverage(
            [family.name for family in ctx.method.families],
            pc.unique(bank["family"]).to_pylist(),
            held,
            truths.families,
        ),
    }


def _written(
    ctx: StageContext, stage: str, experience_of: Callable[[str, str], ExperienceTruth]
) -> list[ExperienceTruth]:
    operations = _new(ctx, stage)
    pairs = zip(operations["family"].to_pylist(), operations["text"].to_pylist(), strict=True)
    return [experience_of(family, text) for family, text in pairs if text is not None]


def _new(ctx: StageContext, stage: str) -> pa.Table:
    """Operations of a stage that write a text."""
    return rows_with(ctx.table(Operation, stage), "kind", EXPERIENCES)


def _held(
    ctx: StageContext, bank: pa.Table, families: Iterable[str], experience_of: Callable[[str, str], ExperienceTruth]
) -> list[ExperienceTruth]:
    """Experiences of the bank whose truth an environment knows."""
    known = rows_with(bank, "family", families)
    texts = _texts_of(ctx, known)
    pairs = zip(known["family"].to_pylist(), known["content_digest"].to_pylist(), strict=True)
    return [experience_of(family, texts[digest]) for family, digest in pairs]


def _texts_of(ctx: StageContext, entries: pa.Table) -> dict[str, str]:
    wanted = set(entries["content_digest"].to_pylist())
    found = {digest: text for digest, text in _texts.items() if digest in wanted}
    missing = wanted - found.keys()
    if missing:
        found |= load_texts(ctx.run_path, rows_with(entries, "content_digest", missing))
    _texts.clear()
    _texts.update(found)
    return found


def _training(ctx: StageContext, trained: Set[str]) -> Metrics:
    """The extractor's batch and buffer, and how old the texts are: those that were used, and all that were searched."""
    samples = ctx.table(Sample, "credit")
    batch = samples.filter(pc.and_(pc.equal(samples["role"], "extractor"), pc.equal(samples["objective"], "cispo")))
    effects = pc.multiply(batch["advantage"], batch["weight"]).to_pylist()
    written = [int(source.split("/")[0]) for source in batch["source"].to_pylist()]
    buffer = ctx.rows(BufferItem, "credit")
    used = _column(ctx, Credit, "credit", "entry_id")
    searched = ctx.bank().table
    shown = rows_with(searched, "entry_id", set(used))
    made = dict(zip(shown["entry_id"].to_pylist(), shown["updated_round"].to_pylist(), strict=True))
    objective = config_of(ctx.method).extractor_objective
    ripe = ripe_items(buffer, objective, round=ctx.round)
    metrics = reward_metrics(batch["reward"].to_pylist(), effects)
    if not metrics and "extractor" in trained and len(ripe) >= objective.batch:
        # A full batch is left alone for one reason only: every reward is the same, so no update would move anything.
        metrics = reward_metrics([output_reward(item) for item in ripe], [0.0] * len(ripe))
    return {
        **metrics,
        **age_metrics("trained_age", [ctx.round - number for number in written]),
        **age_metrics("used_age", [ctx.round - made[each] for each in used]),
        **age_metrics("bank_age", [ctx.round - number for number in searched["updated_round"].to_pylist()]),
        "buffer_oldest_wait": float(oldest_wait(buffer, round=ctx.round)),
    }


def _column(ctx: StageContext, row_type: type[Row], stage: str, name: str) -> list[str]:
    values: list[str] = ctx.table(row_type, stage)[name].to_pylist()
    return values
