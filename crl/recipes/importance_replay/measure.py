"""Stage `measure`: whether the update improved the actor, and a step of the network that predicts which samples help.

The label of an update is the sign of the mean difference of its probes' rewards, after less before; a tie labels
nobody. It goes to every sample that the update trained, or to those of the family or the task that was measured. The
network is trained on the labeled draws of the last rounds, each with the features that it was drawn by:

    loss = c_e BCE(score, label) + c_c mean |score - label|

The actor's loss is weighted by a score that no gradient flows through, so its update and this one are separate; the
three losses are recorded apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from crl.credit.uses import usable
from crl.recipes.importance_replay.config import ACTOR, ReplayProbeConfig, config_of
from crl.recipes.importance_replay.network import matrix, network_of, rows_of_network, settings_of
from crl.recipes.importance_replay.play import AFTER_UPDATE, BEFORE_UPDATE, probe_id
from crl.recipes.importance_replay.rows import (
    IMPROVED,
    LABELS,
    TIE,
    UNCHANGED,
    UNKNOWN,
    WORSE,
    ExtractorTensor,
    Improvement,
    ProbePair,
    ReplayDraw,
)
from crl.records import Episode, Weights
from crl.rounds.context import StageContext
from crl.rounds.stage import BEFORE
from crl.rounds.weights import weights_of

CREDIT, MEASURE = "credit", "measure"
AFTER = "after"
"""Name of the read of the weights that the update left."""
Scope = tuple[str | None, int | None]
"""What a label is measured on: a task family and an environment seed; None: any."""
ROUNDING = 1e-9
"""Mean differences up to this size are sums that rounded: 0.3 - 0.1 + (0.3 - 0.5) is not 0."""


def measure(ctx: StageContext) -> None:
    """Pair the probes, label the update, train the network."""
    config = config_of(ctx.method)
    before, after = weights_of(ctx, ACTOR, read=ACTOR), weights_of(ctx, ACTOR, read=AFTER)
    pairs = pairs_of(ctx.rows(Episode, BEFORE_UPDATE), ctx.rows(Episode, AFTER_UPDATE), before, after, round=ctx.round)
    moved = before.weights_digest != after.weights_digest
    families = [family.name for family in ctx.method.families]
    found = improvements(pairs, families, config.probe, moved=moved)
    ctx.write(ProbePair, pairs)
    ctx.write(Improvement, found)
    ctx.write_metrics(_trained(ctx, found))


def pairs_of(
    before: Iterable[Episode], after: Iterable[Episode], old: Weights, new: Weights, *, round: int
) -> list[ProbePair]:
    """Twins: the same level before and after. None where nothing was played after the update."""
    second = {episode.episode_id: episode for episode in after}
    found = []
    for episode in before:
        twin = second.get(probe_id(round, AFTER_UPDATE, episode.family, episode.environment_seed))
        if twin is not None:
            found.append(
                ProbePair(
                    family=episode.family,
                    environment_seed=episode.environment_seed,
                    before_id=episode.episode_id,
                    after_id=twin.episode_id,
                    before_digest=old.weights_digest,
                    after_digest=new.weights_digest,
                    before=episode.reward,
                    after=twin.reward,
                    counts=usable(episode) and usable(twin),
                )
            )
    return found


def improvements(
    pairs: Sequence[ProbePair], families: Sequence[str], config: ReplayProbeConfig, *, moved: bool
) -> list[Improvement]:
    """The verdict on an update over all probes, by family, or by task: the sign of the mean difference, beyond the
    margin."""
    scopes: list[Scope] = [(None, None)]
    if config.scope == "family":
        scopes = [(family, None) for family in families]
    elif config.scope == "task" and pairs:
        scopes = [(pair.family, pair.environment_seed) for pair in pairs]
    return [
        _improvement(
            scope,
            [pair for pair in pairs if scope[0] in (None, pair.family) and scope[1] in (None, pair.environment_seed)],
            config.margin,
            moved=moved,
        )
        for scope in scopes
    ]


def _improvement(scope: Scope, pairs: Sequence[ProbePair], margin: float, *, moved: bool) -> Improvement:
    family, environment_seed = scope
    counted = [pair for pair in pairs if pair.counts]
    if not counted:
        verdict = UNKNOWN if moved else UNCHANGED
        return Improvement(
            family=family, environment_seed=environment_seed, pairs=0, before=None, after=None, difference=None,
            verdict=verdict, label=None,
        )  # fmt: skip
    before, after = (sum(values) / len(counted) for values in zip(*((p.before, p.after) for p in counted), strict=True))
    difference = sum(pair.after - pair.before for pair in counted) / len(counted)
    margin = max(margin, ROUNDING)
    verdict = IMPROVED if difference > margin else WORSE if difference < -margin else TIE
    return Improvement(
        family=family,
        environment_seed=environment_seed,
        pairs=len(counted),
        before=before,
        after=after,
        difference=difference,
        verdict=verdict,
        label=LABELS.get(verdict),
    )


def labeled(draws: Iterable[ReplayDraw], improvements: Sequence[Improvement]) -> list[tuple[ReplayDraw, float]]:
    """Draws with the label of their update; those of an update that none was measured of are left out."""
    labels: dict[Scope, float | None] = {(row.family, row.environment_seed): row.label for row in improvements}
    found = []
    for draw in draws:
        scopes: list[Scope] = [(draw.family, draw.environment_seed), (draw.family, None), (None, None)]
        label = next((labels[scope] for scope in scopes if scope in labels), None)
        found += [] if label is None else [(draw, label)]
    return found


def _trained(ctx: StageContext, found: Sequence[Improvement]) -> dict[str, float]:
    """Train the network on the window, write it, and return the metrics of the stage."""
    config = config_of(ctx.method).extractor
    drawn = ctx.rows(ReplayDraw, CREDIT)
    mine = labeled(drawn, found)
    # A fork may have inherited rounds that measured nothing.
    window = [
        pair
        for number in range(max(1, ctx.round - config.window + 1), ctx.round)
        if ctx.recipe.resolve(ctx.method, number, MEASURE, 0) is not None
        for pair in labeled(ctx.rows_at(ReplayDraw, number, CREDIT), ctx.rows_at(Improvement, number, MEASURE))
    ]
    metrics = {"draws_labeled": float(len(mine))}
    examples = [*window, *mine]
    # A round without a label says nothing new: the network rests, as its optimizer does.
    if not mine:
        ctx.write(ExtractorTensor, ctx.rows(ExtractorTensor, BEFORE))
        return metrics
    features_NF = matrix([draw.features for draw, _ in examples])
    network = network_of(ctx, features_NF.shape[1], BEFORE, settings_of(config))
    [labels_N] = matrix([[label for _, label in examples]])
    with ctx.timed("extractor network", len(examples)):
        losses = network.fit(features_NF, labels_N, config.epochs)
    ctx.write(ExtractorTensor, rows_of_network(network))
    return {
        **metrics,
        "extractor_loss": losses.extractor,
        "coupling_loss": losses.coupling,
        "extractor_examples": float(len(examples)),
    }
