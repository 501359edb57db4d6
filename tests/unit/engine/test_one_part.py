"""A stage of one part: written as a whole at once, or joined from the part that somebody ran before. One digest."""

from __future__ import annotations

from pathlib import Path

from crl.engine.execute import Attempt, execute_part, execute_stage
from crl.records import EntryScore, Metric
from crl.rounds.context import StageContext
from crl.rounds.stage import Read, Recipe, Stage
from crl.run.directory import RunDirectory
from crl.run.lease import Lease
from tests.unit.engine.harness import make_experiment


def prepare(ctx: StageContext) -> None:
    ctx.write(Metric, [Metric(round=ctx.round, stage=ctx.stage.name, name="start", value=1.0, alarm=None)])


def count(ctx: StageContext) -> int:
    return len(ctx.rows(Metric, "count"))


def play(ctx: StageContext, part: int) -> None:
    """Writes one of the two types that the stage declares, and reads what counting does not."""
    drawn = float(ctx.seed("part").generate_state(1)[0])
    rows = ctx.rows(Metric, "more")
    ctx.write(Metric, [Metric(round=ctx.round, stage="play", name=row.name, value=drawn, alarm=None) for row in rows])
    ctx.progress(1, 1)


RECIPE = Recipe(
    name="one part",
    preparation=(Stage("nothing", run=prepare, writes=(Metric,)),),
    stages=(
        Stage("count", run=prepare, writes=(Metric,)),
        Stage("more", run=prepare, writes=(Metric,)),
        Stage("play", parts=count, run_part=play, reads=(Read("count"), Read("more")), writes=(Metric, EntryScore)),
    ),
)


def digest(root: Path, *, part_first: bool) -> str:
    """Digest of the stage, and a look at what it left."""
    run = RunDirectory.create_or_open(make_experiment(), root)
    told = []
    with Lease.acquire(run.path, seconds=60) as lease:
        attempt = Attempt(token=lease.token, progress=told.append)
        for stage in ("count", "more", "play"):
            if stage == "play" and part_first:
                execute_part(run, RECIPE, 1, stage, 0, attempt=attempt, services=None)  # type: ignore[arg-type]
            outcome = execute_stage(run, RECIPE, 1, stage, attempt=attempt, services=None)  # type: ignore[arg-type]
    assert outcome.rows == {"metrics": 1, "entry_scores": 0}
    assert {"done": 1, "total": 1} in told
    manifest = run.manifest(1, "play")
    assert set(manifest.digested.inputs) == {"0001/count", "0001/more"}
    assert not list((run.path / "rounds" / "0001").glob(".parts-*"))
    return manifest.digest


def test_one_part_has_one_digest_whoever_ran_it(tmp_path: Path) -> None:
    assert digest(tmp_path / "a", part_first=False) == digest(tmp_path / "b", part_first=True)
