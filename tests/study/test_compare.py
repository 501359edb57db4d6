"""`crl compare` by its command line, on a recipe whose success is known: the numbers, resuming, failures, refusals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psutil
import pyarrow.parquet as pq
import pytest
from scipy import stats

from crl.lab.study import child
from crl.run.directory import RunDirectory
from tests.processes import PATIENCE_SECONDS, as_in_a_terminal, kill, wait_until
from tests.study.conftest import Finished
from tests.study.recipe import HELD_OUT, OUTPUTS, PLAYED, wins
from tests.study.studies import ARMS, NAME, ROUNDS, SEEDS, fake, write
from tests.tiny_run import ROOT, command, crl, crl_here, digests, environment
from tests.unit.engine.harness import make_experiment


def expected(arm: str, *, bank: bool, number: int = ROUNDS) -> list[float]:
    """Success of every seed after a round."""
    return [wins(arm, bank=bank, seed=seed, number=number) / HELD_OUT for seed in SEEDS]


def told(interval: dict[str, Any]) -> tuple[float, float, float]:
    return interval["mean"], interval["low"], interval["high"]


def by_scipy(values: list[float]) -> tuple[float, float, float]:
    mean = statistics.fmean(values)
    return mean, *stats.t.interval(0.95, len(values) - 1, loc=mean, scale=stats.sem(values))


def result(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "study.json").read_text(encoding="utf-8"))
    return found


def arm_of(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(arm for arm in found["arms"] if arm["arm"] == name)


def run_directories(directory: Path) -> dict[str, dict[str, str]]:
    return {path.name: digests(path) for path in sorted(directory.iterdir()) if path.is_dir()}


def test_every_run_is_an_ordinary_one(finished_study: Finished) -> None:
    names = [f"{NAME}-{arm}-s{seed}" for arm in ARMS for seed in SEEDS]
    assert sorted(path.name for path in finished_study.directory.iterdir() if path.is_dir()) == sorted(names)
    for arm in ARMS:
        for seed in SEEDS:
            run = RunDirectory.open(finished_study.directory / f"{NAME}-{arm}-s{seed}")
            assert (run.method.seed, run.method.recipe.arm) == (seed, arm) and run.rounds() == [0, 1, 2, 3]
            assert run.experiment_name == run.path.name and (run.path / "report.html").is_file()
    verified = crl_here(finished_study.runs, "verify", f"{NAME}/{names[0]}", extra=fake())
    assert "intact" in verified.stdout
    # Seed by seed: what is finished early is whole pairs.
    begun = [line.split(":")[0] for line in finished_study.said.splitlines() if line.endswith(": begins")]
    assert [name.rpartition("-s")[2] for name in begun] == ["11", "11", "12", "12"]


def test_means_intervals_and_differences_are_those_of_scipy(finished_study: Finished) -> None:
    found = result(finished_study.directory)
    for arm, bank in (("complementary", True), ("complementary", False), ("baseline", False)):
        success = arm_of(found, arm)["with_bank" if bank else "without_bank"]
        values = expected(arm, bank=bank)
        assert list(success["final"].values()) == values
        assert told(success["mean"]) == pytest.approx(by_scipy(values))
        for number in range(ROUNDS + 1):
            curve = expected(arm, bank=bank and number > 0, number=number)
            assert told(success["curve"][str(number)]) == pytest.approx(by_scipy(curve))
        areas = []
        for seed in SEEDS:
            heights = [wins(arm, bank=bank and n > 0, seed=seed, number=n) / HELD_OUT for n in range(ROUNDS + 1)]
            areas.append((heights[0] / 2 + heights[1] + heights[2] + heights[3] / 2) / 3)
        assert told(success["area"]) == pytest.approx(by_scipy(areas))
    assert arm_of(found, "baseline")["with_bank"] is None
    (difference,) = found["differences"]
    assert (difference["arm"], difference["reference"]) == ("complementary", "baseline")
    for name, bank in (("with_bank", True), ("without_bank", False)):
        pairs = zip(expected("complementary", bank=bank), expected("baseline", bank=False), strict=True)
        assert told(difference[name]) == pytest.approx(by_scipy([ours - theirs for ours, theirs in pairs]))
        paired = stats.ttest_rel(expected("complementary", bank=bank), expected("baseline", bank=False))
        assert tuple(paired.confidence_interval(0.95)) == pytest.approx(told(difference[name])[1:])


def test_level_budget_and_shares_come_from_the_record(finished_study: Finished) -> None:
    found = result(finished_study.directory)
    complementary, baseline = arm_of(found, "complementary"), arm_of(found, "baseline")
    reached = [
        next(n for n in range(ROUNDS + 1) if wins("complementary", bank=n > 0, seed=s, number=n) >= HELD_OUT / 4)
        for s in SEEDS
    ]
    assert complementary["with_bank"]["rounds_to_level"] == {
        "median": statistics.median(reached), "reached": 2, "seeds": 2,
    }  # fmt: skip
    assert complementary["with_bank"]["episodes_to_level"]["median"] == PLAYED * statistics.median(reached)
    # One of two seeds of the baseline reaches it: the median over both is later than every round.
    assert [wins("baseline", bank=False, seed=s, number=ROUNDS) for s in SEEDS] == [8, 3]
    assert baseline["without_bank"]["rounds_to_level"] == {"median": None, "reached": 1, "seeds": 2}
    assert set(complementary["episodes"].values()) == {PLAYED * ROUNDS} == set(baseline["episodes"].values())
    assert found["differences"][0]["equal_episodes"]
    assert complementary["malformed"]["mean"] == pytest.approx(1 / OUTPUTS) == complementary["returned"]["mean"]
    assert baseline["malformed"] is None
    rows = pq.read_table(finished_study.directory / "results.parquet").to_pylist()
    assert len(rows) == len(SEEDS) * (ROUNDS + 1) * 3
    for row in rows:
        bank = row["bank"] and row["round"] > 0
        assert row["successes"] == wins(row["arm"], bank=bank, seed=row["seed"], number=row["round"])
        assert (row["episodes"], row["training_episodes"]) == (HELD_OUT, PLAYED * row["round"])
        bank = bank and row["arm"] == "complementary"
        assert (row["actions"], row["tokens_read"], row["tokens_sampled"]) == (1.5, 60 if bank else 40, 2)
    runs = pq.read_table(finished_study.directory / "runs.parquet").to_pylist()
    assert {(row["arm"], row["seed"]) for row in runs} == {(arm, seed) for arm in ARMS for seed in SEEDS}
    for row in runs:
        outputs = OUTPUTS * ROUNDS if row["arm"] == "complementary" else 0
        assert (row["outputs"], row["training_episodes"]) == (outputs, PLAYED * ROUNDS)
        assert row["malformed"] == outputs / OUTPUTS
        assert row["returned"] == outputs / OUTPUTS
        assert (row["experiences_true"], row["coverage"], row["alarms"]) == (None, None, [])


def test_each_chart_is_a_picture_of_its_own(finished_study: Finished) -> None:
    names = ["chart-1-success-with-bank.svg", "chart-2-success-without-bank.svg"]
    assert sorted(path.name for path in finished_study.directory.glob("*.svg")) == names
    for name in names:
        root = ElementTree.parse(finished_study.directory / name).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg" and "baseline" in root.attrib["aria-label"]


def test_the_table_says_what_the_json_says_and_which_seeds_were_tuned_on(finished_study: Finished) -> None:
    said = (finished_study.directory / "study.md").read_text(encoding="utf-8")
    assert said in finished_study.said
    assert "Reported on seeds 11, 12. Settings were chosen on seeds 1, 2, none of which is reported." in said
    mean, low, high = told(arm_of(result(finished_study.directory), "complementary")["with_bank"]["mean"])
    assert f"| 2 | {mean:.2f} [{low:.2f}, {high:.2f}] |".replace("-", "−") in said
    assert (
        "not reached (1 of 2 seeds)" in said and r"Complementary \<b\>RL\</b\>" in said and r"Does it \| work?" in said
    )


def test_what_a_game_takes_comes_from_the_record_and_the_manifests(finished_study: Finished) -> None:
    said = (finished_study.directory / "study.md").read_text(encoding="utf-8")
    rows = [
        line for line in said.split("## What a held-out game takes")[1].split("##")[0].splitlines() if "1.5" in line
    ]
    assert rows[0].endswith("| 1.5 [1.5, 1.5] | 1.5 [1.5, 1.5] | 60 [60, 60] | 40 [40, 40] | 2 [2, 2] | 2 [2, 2] |")
    assert rows[1] == "| baseline | – | 1.5 [1.5, 1.5] | – | 40 [40, 40] | – | 2 [2, 2] |"
    seconds = said.split("## Seconds, on the machines of the runs")[1].split("##")[0]
    # What the fake notes: half a second a game with the bank, a quarter without, an eighth a query.
    assert "| 0.5 [0.5, 0.5] | 0.25 [0.25, 0.25] | 0.125 [0.125, 0.125] | – |" in seconds
    assert "| baseline | – | 0.25 [0.25, 0.25] | – | – |" in seconds


def test_typed_again_nothing_runs_and_nothing_changes(finished_study: Finished) -> None:
    before = {path.name: path.read_bytes() for path in finished_study.directory.glob("*.*") if path.is_file()}
    runs = run_directories(finished_study.directory)
    # An engine would fail at once: none is started.
    again = crl_here(finished_study.runs, "compare", finished_study.file, extra={"CRL_STUDY_FAKE": "broken"})
    assert "4 runs, 4 of them finished" in again.stdout and "begins" not in again.stdout
    assert runs == run_directories(finished_study.directory)
    assert before == {name: (finished_study.directory / name).read_bytes() for name in before}


def test_an_arm_that_changed_is_refused_by_name(finished_study: Finished, tmp_path: Path) -> None:
    arms = {**ARMS, "complementary": {"set": {"method.roles.actor.optimizer.learning_rate": 0.5}}}
    refused = crl_here(finished_study.runs, "compare", write(tmp_path, arms=arms), code=2, extra=fake())
    assert "arm complementary, seed 11" in refused.stderr
    assert "method.roles.actor.optimizer.learning_rate: 0.001 in the run, 0.5 now" in refused.stderr


@pytest.mark.slow
def test_one_arm_prepares_for_another(finished_study: Finished, tmp_path: Path) -> None:
    without = {**ARMS["baseline"], "title": "Without it", "prepared_by": "complementary"}
    arms = {"complementary": ARMS["complementary"], "without": without}
    file, runs = write(tmp_path, arms=arms, compare_with=[]), tmp_path / "runs"
    # The parent of seed 11 dies later on, when its fork is there already; seed 12 is not asked for.
    mishaps = fake(complementary_s11=f"kill {tmp_path / 'killed'}")
    crl(runs, "compare", file, "--seeds", "11", "--jobs", "1", code=1, extra=mishaps)
    done = crl(runs, "compare", file, "--arms", "without", "--jobs", "1", extra=fake())
    assert f"{NAME}-without-s11" not in done.stdout, "it is finished: its parent's death did not matter"
    assert f"{NAME}-without-s12: waits for round 0 of {NAME}-complementary-s12, which prepares for it" in done.stdout
    unfinished = RunDirectory.open(runs / NAME / f"{NAME}-complementary-s12")
    assert unfinished.rounds() == [0], "no more of it was needed"
    done = crl(runs, "compare", file, "--jobs", "2", extra=fake())
    assert "prepared (round 0) for the runs of the same seed of Without it." in done.stdout
    for seed in SEEDS:
        parent, child = (runs / NAME / f"{NAME}-{arm}-s{seed}" for arm in ("complementary", "without"))
        assert digests(parent) == digests(finished_study.directory / parent.name)
        shared = {place: digest for place, digest in digests(parent).items() if place < "0001"}
        assert shared and shared.items() <= digests(child).items() and len(digests(child)) > len(shared)
        ancestor = RunDirectory.open(child).lineage.parent
        assert ancestor is not None and (ancestor.experiment, ancestor.round) == (parent.name, 0)
    found = arm_of(result(runs / NAME), "without")
    assert found["prepared_by"] == "Complementary <b>RL</b>" and found["with_bank"] is None
    assert told(found["without_bank"]["mean"]) == pytest.approx(by_scipy(expected("baseline", bank=False)))
    # A run that is there begins with what it begins with.
    arms["without"] = ARMS["baseline"]
    refused = crl_here(runs, "compare", write(tmp_path, arms=arms, compare_with=[]), code=2, extra=fake())
    assert f"{NAME}-without-s11 begins with rounds 0 to 0 of {NAME}-complementary-s11" in refused.stderr
    arms["without"] = without
    arms["complementary"] = {"set": {**ARMS["complementary"]["set"], "method.threads": 2}}
    for seed in SEEDS:
        shutil.rmtree(runs / NAME / f"{NAME}-complementary-s{seed}")
    refused = crl_here(runs, "compare", write(tmp_path, arms=arms, compare_with=[]), code=2, extra=fake())
    assert f"round 0 of {NAME}-complementary-s11, as its arm is now" in refused.stderr


@pytest.mark.slow
def test_a_preparation_that_fails_is_tried_once_and_told_of_every_run(tmp_path: Path) -> None:
    def without(threads: int) -> dict[str, Any]:
        settings = {**ARMS["baseline"]["set"], "method.threads": threads}
        return {"set": settings, "prepared_by": "complementary"}

    arms = {"complementary": ARMS["complementary"], "one": without(1), "two": without(2)}
    runs = tmp_path / "runs"
    mishaps = fake(complementary_s11="fail 0")
    file = write(tmp_path, seeds=[11], arms=arms, compare_with=[])
    done = crl(runs, "compare", file, "--jobs", "2", code=1, extra=mishaps)
    parent = f"{NAME}-complementary-s11"
    assert "3 runs failed" in done.stderr and f"  {parent}: the fake refuses" in done.stderr
    for arm in ("one", "two"):
        assert f"  {NAME}-{arm}-s11: {parent} could not prepare for it: the fake refuses" in done.stderr
    journal = (runs / NAME / parent / "journal.jsonl").read_text(encoding="utf-8")
    assert journal.count('"stage_failed"') == 1
    assert f"crl status {runs / NAME / parent}" in done.stderr.replace("\n", " ")


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    file, runs = write(tmp_path, seeds=[11, 12]), tmp_path / "runs"
    mishaps = fake(baseline_s11="fail", complementary_s11=f"kill {tmp_path / 'killed'}")
    done = crl(runs, "compare", file, "--jobs", "2", code=1, extra=mishaps)
    assert "2 runs failed" in done.stderr and f"{NAME}-baseline-s11: the fake refuses" in done.stderr
    assert f"{NAME}-complementary-s11: the process of the run was ended by SIGKILL" in done.stderr
    found = result(runs / NAME)
    assert [arm["finished"] for arm in found["arms"]] == [[12], [12]]
    assert found["differences"][0]["without_bank"]["seeds"] == 1
    said = (runs / NAME / "study.md").read_text(encoding="utf-8")
    assert "2 runs are not finished" in said
    assert f"Among them {NAME}-baseline-s11 failed in round 2, " in said and "the fake refuses" in said
    # The same command goes on; only what is missing runs.
    again = crl(runs, "compare", file, extra=fake())
    assert "4 runs, 2 of them finished" in again.stdout and "-s12: " not in again.stdout
    assert f"{NAME}-baseline-s11: continues after round 1" in again.stdout
    assert [arm["finished"] for arm in result(runs / NAME)["arms"]] == [[11, 12], [11, 12]]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_study_leaves_no_process_and_goes_on(
    finished_study: Finished, tmp_path: Path, number: signal.Signals
) -> None:
    file, runs = write(tmp_path, seeds=[11]), tmp_path / "runs"
    markers = [tmp_path / "complementary", tmp_path / "baseline"]
    mishaps = fake(complementary_s11=f"sleep {markers[0]}", baseline_s11=f"sleep {markers[1]}")
    with as_in_a_terminal():
        process = subprocess.Popen(
            command("compare", file, "--jobs", "2"), cwd=ROOT, env=environment(runs, mishaps), start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
    wait_until(lambda: all(marker.exists() for marker in markers), "both runs are in round 2")
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 4, "two runs, each with an engine"
    try:
        os.killpg(process.pid, number)
        _, said = process.communicate(timeout=PATIENCE_SECONDS)
        wait_until(lambda: not any(child.is_running() for child in children), "every process has ended", 20.0)
    finally:
        kill(children)
    if number == signal.SIGINT:
        assert process.returncode == 130 and b"continue with: crl compare" in said
    done = crl(runs, "compare", file, extra=fake())
    assert done.stdout.count("continues after round 1") == 2
    for arm in ARMS:
        name = f"{NAME}-{arm}-s11"
        assert digests(runs / NAME / name) == digests(finished_study.directory / name)


@pytest.mark.slow
def test_a_run_is_written_to_the_trackers_of_its_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRL_FAKE", "{}")
    experiment = make_experiment(trackers=["tensorboard"])
    run = RunDirectory.create_or_open(experiment, tmp_path)
    monkeypatch.setattr(child, "write_report", lambda path: None)
    child.run(run.path, 1, experiment.runtime)
    assert len(list((run.path / "tensorboard").iterdir())) == 2


def test_a_second_command_is_refused_while_one_works(finished_study: Finished) -> None:
    from crl.errors import LeaseHeld
    from crl.lab.study.runs import only_one

    with only_one(finished_study.directory):
        refused = crl_here(finished_study.runs, "compare", finished_study.file, code=LeaseHeld.exit_code, extra=fake())
        assert "another process works on this study" in refused.stderr
        table = crl_here(finished_study.runs, "compare", finished_study.file, "--table-only", extra=fake())
        assert "| baseline | 2 |" in table.stdout
