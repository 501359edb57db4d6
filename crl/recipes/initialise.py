"""Stage `initialise` of round 0: the base models by digest, and an empty bank."""

from __future__ import annotations

import hashlib

from crl.recipes.context import StageContext
from crl.records import BankEntry, BankEvent, Weights


def initialise(ctx: StageContext) -> None:
    """Write a weights row a role (the base model as it is) and the empty bank snapshot that round 1 reads."""
    rows = []
    for role in ("actor", "extractor"):
        base_digest = ctx.services.model_digest(role)
        rows.append(
            Weights(
                role=role,
                round=0,
                updates=0,
                source=ctx.method.role(role).model,
                base_digest=base_digest,
                checkpoint=None,
                weights_digest=hashlib.sha256(base_digest.encode()).hexdigest(),
            )
        )
    ctx.write(Weights, rows)
    ctx.write(BankEntry, [])
    ctx.write(BankEvent, [])
