"""A study in pieces: one arm with one seed at a time, each kept as a small Parquet file that can be committed.

    python research/pieces.py conf/study/objectives.yaml            # runs the first piece that is missing
    python research/pieces.py conf/study/objectives.yaml --all      # one after the other, until none is missing
    python research/pieces.py conf/study/objectives.yaml --tables   # tables and raw results of those that are there

`--arms` and `--seeds` are for one of several machines or cores, each with its own --runs.

A piece is `research/pieces/STUDY/ARM-sSEED.parquet`: what a run says as far as a study asks (`RunMetrics`), and the
digest of its method, so that pieces of other settings are never mixed. Runs are made by `crl compare`, below --runs;
one that is interrupted goes on where it was. A piece is there when its run is complete: no choice is left of what is
reported.

`--tables` writes `research/results/STUDY.parquet` and `STUDY_runs.parquet`, the charts, and everything below the line
`<!-- tables -->` of `research/STUDY.md`, if there is such a page.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from crl.lab.study.config import Study, load_study
from crl.lab.study.files import MARKDOWN, PARQUET, RUNS, parquet_of, write_study
from crl.lab.study.metrics import RunMetrics, read_run
from crl.lab.study.plan import PlannedRun, chosen, plan_runs
from crl.lab.study.results import RunsByArm
from crl.run.files import write_atomically

RESEARCH = Path(__file__).parent
MARK = "<!-- tables -->"
CHARTS = {"1-success-with-bank": "with-bank", "2-success-without-bank": "without-bank"}


def path_of(study: Study, run: PlannedRun, folder: Path = RESEARCH) -> Path:
    """The file of a piece, made or not."""
    return folder / "pieces" / study.name / f"{run.arm}-s{run.seed}.parquet"


def keep(study: Study, run: PlannedRun, folder: Path = RESEARCH) -> Path:
    """Write the piece of a finished run. Raises ValueError where the run is not finished, RecordDamaged."""
    if not run.is_finished():
        raise ValueError(f"{run.name} has {run.rounds_done()} of {run.rounds} rounds")
    row = {
        "arm": run.arm,
        "seed": run.seed,
        "method_digest": run.experiment.method.digest(),
        "metrics": read_run(run.path, run.rounds).model_dump_json(),
    }
    path = path_of(study, run, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, parquet_of(pa.Table.from_pylist([row])))
    return path


def read(study: Study, runs: list[PlannedRun], folder: Path = RESEARCH) -> RunsByArm:
    """All pieces that are there. Raises ValueError where one is of another method than its arm has now."""
    found: RunsByArm = {}
    for run in runs:
        path = path_of(study, run, folder)
        if path.exists():
            (row,) = pq.read_table(path).to_pylist()
            if row["method_digest"] != run.experiment.method.digest():
                raise ValueError(f"{path} was made with other settings than {run.arm} has now: take the change back")
            found.setdefault(run.arm, {})[run.seed] = RunMetrics.model_validate_json(row["metrics"])
    return found


def missing(study: Study, runs: list[PlannedRun], folder: Path = RESEARCH) -> list[PlannedRun]:
    """What is still to be run, in the order of the study: seed by seed."""
    return [run for run in runs if not path_of(study, run, folder).exists()]


def tables(study: Study, runs: list[PlannedRun], folder: Path = RESEARCH) -> str:
    """Write the results of the pieces that are there; the tables as Markdown."""
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary)
        write_study(study, [], made, read(study, runs, folder))
        name = study.name.replace("-", "_")
        for source, to in (
            (PARQUET, f"results/{name}.parquet"),
            (RUNS, f"results/{name}_runs.parquet"),
            *((f"chart-{chart}.svg", f"pictures/{study.name}-{short}.svg") for chart, short in CHARTS.items()),
        ):
            if (made / source).exists():
                (folder / to).parent.mkdir(exist_ok=True)
                shutil.copyfile(made / source, folder / to)
        found = (made / MARKDOWN).read_text(encoding="utf-8")
    page = folder / f"{name}.md"
    if page.exists() and MARK in (text := page.read_text(encoding="utf-8")):
        below = found[found.index("\n## ") :]  # the page has a title and a question of its own
        page.write_text(f"{text.partition(MARK)[0]}{MARK}\n{below}", encoding="utf-8")
    return found


def main() -> int:
    """See the module docstring."""
    parser = argparse.ArgumentParser(description="A study in pieces: one arm with one seed at a time.")
    parser.add_argument("study", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs (default: runs)")
    parser.add_argument("--all", action="store_true", help="go on until no piece is missing")
    parser.add_argument("--arms", nargs="+", help="these arms only")
    parser.add_argument("--seeds", nargs="+", type=int, help="these seeds only")
    parser.add_argument("--tables", action="store_true", help="write the tables of the pieces that are there")
    options = parser.parse_args()
    study = load_study(options.study)
    runs = plan_runs(study, options.runs)
    if options.tables:
        print(tables(study, runs))
        return 0
    wanted = missing(study, chosen(runs, options.arms, options.seeds))
    for run in wanted if options.all else wanted[:1]:
        if not run.is_finished():
            words = [sys.executable, "-m", "crl", "compare", str(options.study), "--runs", str(options.runs)]
            done = subprocess.run([*words, "--arms", run.arm, "--seeds", str(run.seed), "--jobs", "1"], check=False)
            if done.returncode:
                return done.returncode
        print(f"written: {keep(study, run)}; {len(missing(study, runs))} left. Commit it.", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
