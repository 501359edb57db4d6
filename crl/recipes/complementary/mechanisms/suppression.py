"""Suppression (`recipe.suppress`): a text that does harm in a task family is not retrieved for it, and stays.

Stage `effects` keeps what each text has done in each family, with the uses of the round. Whatever retrieves passes over
the texts that it says are harmful: the plan, evaluation, and questions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from crl.bank.segments import load_texts
from crl.config import Method, SuppressConfig
from crl.credit.effects import effect_metrics, suppressed_texts, text_effects
from crl.errors import BadInput
from crl.recipes.complementary.config import config_of
from crl.recipes.complementary.mechanisms import Adds, Mechanism, Sources, Told, Truth
from crl.records import Credit, Episode, Metric, Suppression, TextEffect, rows_with
from crl.rounds.context import NEW_BANK, StageContext
from crl.rounds.stage import BEFORE, Read, Stage

EFFECTS = "effects"


class Suppress(Mechanism):
    """`recipe.suppress`."""

    key = "recipe.suppress"
    after_rollouts = False
    config: SuppressConfig

    def problems(self, method: Method) -> Iterator[BadInput]:
        if config_of(method).always_guided(method):
            yield BadInput(
                "guided_share leaves no member of a group unguided, so no text has an effect to be judged by",
                expected="a share that leaves some free, or no suppress",
                where="method.recipe.suppress",
                next_step="leave it out, or lower recipe.guided_share",
            )

    def stages(self, method: Method, at: Sources) -> Sequence[Stage]:
        reads = (Read("credit"), Read("collect"), Read(EFFECTS, -1, BEFORE))
        return (Stage(name=EFFECTS, run=self.measure, reads=reads, writes=(TextEffect, Metric)),)

    def adds(self, method: Method, at: Sources) -> Mapping[str, Adds]:
        played, now = Adds(reads=(Read(EFFECTS, -at.lag),)), Adds(reads=(Read(EFFECTS),))
        asks = {"collect": played} if method.rollout.search_and_ask is not None else {}
        return {"plan": Adds(played.reads, writes=(Suppression,)), "evaluate": now, "health": now, **asks}

    def measure(self, ctx: StageContext) -> None:
        """Write what texts have done in each family, with the round's uses."""
        families = {row.episode_id: row.family for row in ctx.rows(Episode, "collect")}
        effects = text_effects(ctx.rows(TextEffect, BEFORE), ctx.rows(Credit, "credit"), families, self.config)
        ctx.write(TextEffect, effects)
        ctx.write(Metric, effect_metrics(effects, round=ctx.round, stage=ctx.stage.name))

    def figures(self, ctx: StageContext, truth: Truth) -> Told:
        """Whether the texts of the bank that are not retrieved are right, each once for every such family."""
        harmful = [row for row in ctx.rows(TextEffect, EFFECTS) if row.suppressed]
        held = rows_with(ctx.bank(NEW_BANK).table, "content_digest", {row.content_digest for row in harmful})
        texts = load_texts(ctx.run_path, held)
        found = [(row.family, texts[row.content_digest]) for row in harmful if row.content_digest in texts]
        return truth("notes_true_suppressed", found), {}


def masked(ctx: StageContext) -> dict[str, frozenset[str]]:
    """Texts that are passed over, by family, as the round that the bank is of left them; none where all are found."""
    return {} if config_of(ctx.method).suppress is None else suppressed_texts(ctx.rows(TextEffect, EFFECTS))
