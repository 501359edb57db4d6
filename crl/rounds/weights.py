"""Which weights a role has: read, carried over, and identified by what they are made of."""

from __future__ import annotations

import hashlib
from pathlib import Path

from crl.errors import RecordDamaged
from crl.paths import quoted
from crl.records import Generation, Weights
from crl.rounds.context import StageContext
from crl.run.files import sha256_once
from crl.text.outputs import Output, token_record

CHECKPOINT = "checkpoint"
"""Directory of the weights inside the stage that wrote them."""


def weights_of(ctx: StageContext, role: str, *, read: str | None = None) -> Weights:
    """The weights row of a role, from the declared read of its name (or of another: `read`)."""
    owner = ctx.method.owner(role)
    for row in ctx.rows(Weights, read or role):
        if row.role == owner:
            return row
    raise RecordDamaged(
        f"no weights of role {owner} in what stage {ctx.stage.name} of round {ctx.round} reads as {read or role}",
        expected="one row of table weights",
        where=str(ctx.run_path),
        next_step=f"run `crl verify {quoted(ctx.run_path)}`",
    )


def recorded(ctx: StageContext, output: Output, role: str, kind: str, weights: Weights) -> Generation:
    """The token record of an output that a role wrote in this stage, with these weights."""
    return token_record(
        output,
        generation_id=f"g-{output.prompt.name}",
        round=ctx.round,
        stage=ctx.stage.name,
        role=role,
        kind=kind,
        weights_digest=weights.weights_digest,
        temperature=ctx.method.role(role).sampling.temperature,
    )


def identify(base_digest: str, checkpoint: Path) -> str:
    """SHA-256 over the base model's digest and the sampling weights of a checkpoint.

    Only what samples counts: optimizer state in subdirectories is digested by the manifest.
    """
    digest = hashlib.sha256(base_digest.encode())
    for path in sorted(path for path in checkpoint.iterdir() if path.is_file()):
        digest.update(path.name.encode())
        digest.update(bytes.fromhex(sha256_once(path)))
    return digest.hexdigest()


def new_weights(ctx: StageContext, before: Weights, *, updates: int) -> Weights:
    """The row for the checkpoint that a stage just wrote into its directory."""
    relative = f"rounds/{ctx.round:04d}/{ctx.stage.name}/{CHECKPOINT}"
    return Weights(
        role=before.role,
        round=ctx.round,
        updates=updates,
        source=before.source,
        base_digest=before.base_digest,
        checkpoint=relative,
        weights_digest=identify(before.base_digest, ctx.directory / CHECKPOINT),
    )
