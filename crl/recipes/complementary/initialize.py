"""Stage `initialize` of round 0: the models that are used, by digest, and the bank that round 1 begins with."""

from __future__ import annotations

import hashlib

from crl.recipes.complementary.consolidate import publish
from crl.records import BankEntry, Weights, schema_of
from crl.rounds.context import StageContext
from crl.rounds.publish import begin_with
from crl.run.imports import load_import


def initialize(ctx: StageContext) -> None:
    """Write a row per set of weights (the base model as it is) and the bank that round 1 reads: an empty one, or
    what was imported (`crl bank import`).

    The embedder is a role that is never trained: its row lets a run refuse another model under the same name. A recipe
    without a bank has neither extractor nor embedder.
    """
    ctx.write(Weights, base_weights(ctx))
    taken = load_import(ctx.run_path)
    if taken is None:
        publish(ctx, schema_of(BankEntry).empty_table(), None, [], [])
    else:
        begin_with(ctx, taken)


def base_weights(ctx: StageContext) -> list[Weights]:
    """A row per set of weights, the base model as it is, and one of the embedder where the recipe has one."""
    sources = {owner: ctx.method.role(owner).model for owner in ctx.method.owners()}
    embedder = ctx.method.recipe.embedder()
    if embedder is not None:
        sources["embedder"] = embedder.name
    rows = []
    for role, source in sources.items():
        base_digest = ctx.services.model_digest(role)
        rows.append(
            Weights(
                role=role,
                round=0,
                updates=0,
                source=source,
                base_digest=base_digest,
                checkpoint=None,
                weights_digest=hashlib.sha256(base_digest.encode()).hexdigest(),
            )
        )
    return rows
