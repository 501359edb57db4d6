"""A recipe of tiny stages that need no model, with mishaps on order: what engine and flow tests run.

`$CRL_FAKE` holds JSON: stage name → [mishap, argument]. A mishap strikes in the middle of the stage, after a row was
written; those with a marker file strike once. Engines that run this recipe check no tables unless `$CRL_FAKE_CHECKS`
is set: the suites take seconds to import, which every engine of these tests would pay.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from crl.config import Method, RecipeConfig, RoleUse
from crl.errors import BadInput, DataCheckFailed
from crl.records import Metric
from crl.rounds.context import StageContext
from crl.rounds.stage import BEFORE, Read, Recipe, Stage
from crl.run.files import write_atomically
from crl.run.lease import LeaseFile

PARTS = 4

_spec = sys.modules["__main__"].__spec__
if _spec is not None and _spec.name == "crl.engine.worker" and not os.environ.get("CRL_FAKE_CHECKS"):
    import crl.checks

    crl.checks.check_tables = lambda tables, where, own: []


KIND = f"{__name__}:FakeConfig"


class FakeConfig(RecipeConfig):
    """The config of the fake recipe."""

    kind: str = KIND
    BUILDER: ClassVar[str] = f"{__name__}:build"
    OVERLAPS: ClassVar[bool] = True

    def roles(self) -> Mapping[str, RoleUse]:
        return {"actor": RoleUse()}


def build(method: Method) -> Recipe:
    """Round 0: `prepare`. Later: `draw`, `spread` (in parts), `learn` (an update), `total`, which may overlap."""
    return Recipe(
        name="fake",
        preparation=(Stage("prepare", run=prepare, writes=(Metric,)),),
        stages=(
            Stage("draw", run=draw, reads=(Read("total", -2 if method.overlap else -1, BEFORE),), writes=(Metric,)),
            Stage("spread", parts=count_parts, run_part=spread, reads=(Read("draw"),), writes=(Metric,)),
            Stage("learn", run=learn, role="actor", update=True, reads=(Read("spread"),), writes=(Metric,)),
            Stage(
                "total", run=total, reads=(Read("spread"), Read("draw")), writes=(Metric,), second_track=method.overlap
            ),
        ),
        initial={"total": "prepare"},
    )


def metric(ctx: StageContext, name: str, value: float) -> Metric:
    return Metric(round=ctx.round, stage=ctx.stage.name, name=name, value=value, alarm=None)


def prepare(ctx: StageContext) -> None:
    mishap(ctx)
    ctx.write(Metric, [metric(ctx, "start", 1.0)])


def draw(ctx: StageContext) -> None:
    before = sum(row.value for row in ctx.rows(Metric, BEFORE))
    generator = np.random.default_rng(ctx.seed("draw"))
    rows = [metric(ctx, f"d{index}", before + float(generator.random())) for index in range(5)]
    ctx.progress(2, 5, drawn=2)
    (ctx.directory / "half.txt").write_text("half")
    mishap(ctx)
    ctx.write(Metric, rows * (2 if ordered(ctx) == "duplicates" else 1))
    ctx.progress(5, 5, drawn=5, rate=2.5)


def count_parts(ctx: StageContext) -> int:
    return PARTS


def spread(ctx: StageContext, part: int) -> None:
    drawn = ctx.rows(Metric, "draw")
    mishap(ctx, part)
    ctx.write(Metric, [metric(ctx, f"p{part}-{row.name}", row.value * (part + 1)) for row in drawn])
    ctx.progress(10, 10, made=10)


def learn(ctx: StageContext) -> None:
    """Every rank writes a file, as a sharded checkpoint does; rank 0 writes the row and is not the last to finish."""
    rank = ctx.services.rank
    mishap(ctx)
    if rank > 0:
        time.sleep(0.5)
    (ctx.directory / f"rank{rank}.txt").write_text(f"rank {rank}")
    ctx.write(Metric, [metric(ctx, "loss", float(len(ctx.rows(Metric, "spread"))))])


def total(ctx: StageContext) -> None:
    mishap(ctx)
    rows = ctx.rows(Metric, "spread") + ctx.rows(Metric, "draw")
    ctx.write(Metric, [metric(ctx, "total", sum(row.value for row in rows))])


def ordered(ctx: StageContext) -> str | None:
    """Kind of mishap ordered for this stage."""
    return json.loads(os.environ.get("CRL_FAKE", "{}")).get(ctx.stage.name, [None])[0]


def mishap(ctx: StageContext, part: int | None = None) -> None:
    """What `$CRL_FAKE` orders for this stage (or `stage/part`)."""
    orders = json.loads(os.environ.get("CRL_FAKE", "{}"))
    name = ctx.stage.name if part is None else f"{ctx.stage.name}/{part}"
    if name not in orders:
        return
    kind, argument = orders[name]
    if kind.endswith("_once"):
        if Path(argument).exists():
            return
        mark(Path(argument))
    match kind.removesuffix("_once"):
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            sys.exit(int(argument))
        case "sleep":
            mark(Path(argument))
            time.sleep(3600)
        case "hold":
            mark(Path(argument))
            while not Path(f"{argument}-go").exists():
                time.sleep(0.02)
        case "raise":
            raise ValueError("the fake broke")
        case "bad_input":
            raise BadInput("the fake refuses", expected="something else")
        case "breach":
            raise DataCheckFailed("table metrics, rule value >= 0: row 3 has -1.0", next_step="look at row 3")
        case "disk":
            raise OSError(errno.ENOSPC, "No space left on device")
        case "rob":
            rob(ctx)
            raise ValueError("the fake broke because it was robbed")
        case "overtake":
            rob(ctx)
        case "memory":
            raise MemoryError("too much")
        case "say":
            print("a line\nnext line", flush=True)
            os.write(2, b"an error line\n")


def mark(marker: Path) -> None:
    """Write this process's id. A marker that exists is whole."""
    half = marker.with_name(f"{marker.name}-{os.getpid()}")
    half.write_text(str(os.getpid()))
    half.replace(marker)


def rob(ctx: StageContext) -> None:
    """A newer attempt takes the lease."""
    run = next(parent for parent in ctx.directory.parents if (parent / "lease.json").exists())
    lease = LeaseFile.load(run)
    assert lease is not None
    taken = lease.model_copy(update={"token": lease.token + 1})
    write_atomically(run / "lease.json", taken.sealed().render())  # its owner looks meanwhile
