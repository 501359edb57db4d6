"""`conf/tiny.yaml` trained twice from equal seeds: do all digests agree on this machine?"""

from __future__ import annotations

from pathlib import Path

from benchmarks.gpu_steps.common import arguments, clocked, tell
from crl.config.load import load_experiment
from crl.engine.driver import Driver
from crl.errors import RecordDamaged
from crl.run.directory import RunDirectory, stage_manifests

ROOT = Path(__file__).resolve().parents[2]


def digests_of(folder: Path, *, full: bool) -> dict[str, str]:
    """Train and give the digest of every stage."""
    # On a CPU the whole suite has three minutes: without the warm start, which takes most of the time.
    cut = {} if full else {"method.recipe.warm_start": None, "method.evaluation.every": 0}
    experiment = load_experiment(ROOT / "conf/tiny.yaml", cut | {"runtime.runs": str(folder)})
    run, rounds = RunDirectory.create_or_open(experiment, folder / experiment.name), 2 if full else 1
    with Driver(run, experiment.runtime) as driver:
        for number in range(rounds + 1):
            driver.run_round(number)
    found = {}
    for number in range(rounds + 1):
        for stage, manifest in stage_manifests(run.path, number).items():
            if isinstance(manifest, RecordDamaged):
                raise manifest
            found[f"{number:04}/{stage}"] = manifest.digest
    return found


def main() -> None:
    """Train twice, one after the other, and compare every stage."""
    asked = arguments(__doc__)
    both = []
    for name in ("first", "second"):
        with clocked(f"{name}_seconds"):
            both.append(digests_of(asked.folder / name, full=asked.scale == "full"))
    first, second = both
    different = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
    tell(stages=len(first), equal=len(first) - len(different), different=different[:8])


if __name__ == "__main__":
    main()
