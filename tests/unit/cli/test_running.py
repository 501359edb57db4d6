"""Commands that run rounds or change a run: train, resume, redo, verify. On a recipe without models."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from crl.run.lease import Lease
from tests.unit.cli.conftest import Outcome

Crl = Callable[..., Outcome]


def stage_digests(run: Path) -> dict[str, str]:
    return {
        str(path.parent.relative_to(run)): json.loads(path.read_text())["digest"]
        for path in run.glob("rounds/*/*/manifest.json")
    }


def test_train_continue_damage_redo_and_resume(
    crl: Crl, fake: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = crl("train", fake, "--rounds", "1", "--no-prefect")
    assert first.code == 0, first.err
    assert "round 1: draw, spread, learn, total" in first.out and "crl verify" in first.out
    asked = re.search(r"# success by round and condition.*\n  crl sql (.+)", first.out)
    assert asked is not None and crl("sql", *shlex.split(asked[1])).code == 0, "the suggestion can be typed"
    run = runs / "tiny"
    assert (run / "catalog.duckdb").is_file()
    before = stage_digests(run)
    assert len(before) == 5

    monkeypatch.setattr("crl.report.page.render", lambda *run, **options: "a page")  # made once, above
    second = crl("train", fake, "--rounds", "1", "--no-prefect")
    assert "round 2: draw" in second.out and "round 1: draw" not in second.out
    assert before.items() < stage_digests(run).items(), "what was complete stayed as it was"
    complete = stage_digests(run)

    idle = crl("resume", "tiny")
    assert idle.code == 0 and "nothing to do" in idle.out
    status = crl("status", "tiny")
    assert "complete: every requested round is done" in status.out
    assert crl("verify", "tiny").code == 0

    damaged = run / "rounds/0002/spread/metrics.parquet"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1])
    found = crl("verify", "tiny")
    assert found.code == 4 and "rounds/0002/spread/metrics.parquet" in found.out
    mend = next(line for line in found.out.splitlines() if "mend" in line)
    assert mend.split(None, 1)[1] == f"crl redo {run} --from 0002/spread"
    refused = crl("resume", "tiny", "--rounds", "1")
    assert refused.code == 4 and "metrics.parquet" in refused.err

    asked = crl("redo", run, "--from", "0002/spread")
    assert asked.code == 2 and f"crl redo {run} --from 0002/spread --yes" in asked.err
    assert "takes back 3 stages of round 2, from 0002/spread on. They took " in asked.out
    assert hashlib.sha256(whole).hexdigest() in asked.out, "the file that a backup has to hold"
    assert f"crl fork {run} --round 1 --name tiny-again" in asked.out
    assert stage_digests(run) == complete, "nothing was done"
    with monkeypatch.context() as terminal:
        for stream in (sys.stdin, sys.stdout):
            terminal.setattr(stream, "isatty", lambda: True)
        terminal.setattr("typer.confirm", lambda question: False)
        assert crl("redo", run, "--from", "0002/spread").code == 2 and stage_digests(run) == complete
        terminal.setattr("typer.confirm", lambda question: True)
        redone = crl("redo", run, "--from", "0002/spread")
    assert redone.code == 0
    assert [line for line in redone.out.splitlines() if line.startswith("set aside")] == [
        "set aside 0002/spread", "set aside 0002/learn", "set aside 0002/total",
    ]  # fmt: skip
    assert "unfinished: round 2, spread" in crl("status", "tiny").out
    assert "3 not made again yet: crl resume" in crl("verify", "tiny").out
    resumed = crl("resume", "tiny")
    assert resumed.code == 0 and "1 stages were complete already" in resumed.out
    assert stage_digests(run) == complete
    verified = crl("verify", "tiny")
    assert verified.code == 0
    told = r"note: 0002/spread to 0002/total \(3 stages\) taken back on .*; it is in damaged/1; made again since"
    assert re.search(told, verified.out)


@pytest.mark.slow
def test_a_run_is_held_against_a_head_that_was_kept_and_what_is_lost_is_made_again(
    crl: Crl, fake: Path, runs: Path
) -> None:
    assert crl("train", fake, "--rounds", "2", "--no-prefect").code == 0
    run = runs / "tiny"
    complete = stage_digests(run)
    told = re.search(r"^head: ([0-9a-f]{64}) \(after round 2\)$", crl("status", "tiny").out, re.MULTILINE)
    assert told is not None
    held = crl("verify", "tiny", "--head", told[1])
    assert held.code == 0 and told[0] in held.out and "is that of round 2" in held.out
    assert crl("verify", "tiny", "--head", told[1][1:]).code == 2
    other = crl("verify", "tiny", "--head", "0" * 64)
    assert other.code == 4 and "a different head" in other.err and told[1] in other.err and "compare" in other.err

    for gone, named in (("0002/total", "rounds/0002/total"), ("0002", "rounds/0002")):
        shutil.rmtree(run / "rounds" / gone)
        found = crl("verify", "tiny", "--head", told[1])
        assert found.code == 4 and f"{named} (lost)" in found.out and "does not fit" in found.out
        for said in (found.out, crl("status", "tiny").out):  # there is none to tell in the middle of a round
            assert re.findall(r"^head: .*(\(after round .\))$", said, re.MULTILINE) == ["(after round 1)"]
        mend = next(line for line in found.out.splitlines() if "mend" in line)
        assert mend.split(None, 1)[1] == f"crl resume {run}"
        assert crl("resume", run).code == 0
        assert stage_digests(run) == complete and crl("verify", "tiny", "--head", told[1]).code == 0

    (run / "journal.jsonl").unlink()
    noted = crl("verify", "tiny")
    assert noted.code == 0 and "note: journal.jsonl is missing" in noted.out


@pytest.mark.slow
def test_a_failed_stage_is_told_and_resume_goes_on(crl: Crl, fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRL_FAKE", json.dumps({"learn": ["raise", ""]}))
    failed = crl("train", fake, "--rounds", "1", "--no-prefect")
    assert failed.code == 1 and "the fake broke" in failed.err
    assert "Traceback" in failed.out, "the engine's own lines are shown when an error does not explain itself"
    status = crl("status", "tiny")
    assert "last failure: round 1, stage learn" in status.out and "the fake broke" in status.out
    monkeypatch.setenv("CRL_FAKE", "{}")
    assert crl("resume", "tiny").code == 0
    assert "last failure" not in crl("status", "tiny").out


def test_a_breach_of_the_data_checks_has_its_own_exit_code(
    crl: Crl, fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRL_FAKE", json.dumps({"prepare": ["breach", ""]}))
    outcome = crl("train", fake, "--no-prefect")
    assert outcome.code == 5 and "row 3" in outcome.err


def test_an_interrupt_says_how_to_go_on(crl: Crl, fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("crl.engine.driver.Driver.run_rounds", interrupted)
    outcome = crl("train", fake, "--no-prefect")
    assert outcome.code == 130 and "crl resume" in outcome.err


@pytest.mark.slow
def test_what_an_interrupted_command_asked_for_is_not_forgotten(
    crl: Crl, fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as early:
        early.setattr("crl.cli.train._run_flow", interrupted)  # while Prefect starts
        early.setattr("crl.engine.driver.Driver.set_target", interrupted)
        assert f"with: crl train {fake} --rounds 2\n" in crl("train", fake, "--rounds", "2").err
        assert f"with: crl train {fake} --no-prefect\n" in crl("train", fake, "--no-prefect").err
    assert "next: crl resume" in (status := crl("status", "tiny").out) and "--rounds 3" in status
    refused = crl("resume", "tiny")
    assert refused.code == 2 and "nobody has said how many rounds" in refused.err and "--rounds" in refused.err
    assert "crl train" not in status + refused.err, "another experiment's file would be refused"

    monkeypatch.setattr("crl.engine.driver.Driver.run_rounds", interrupted)
    assert "with: crl resume" in crl("train", fake, "--rounds", "2", "--no-prefect").err
    said = crl("resume", "tiny", "--rounds", "5").err
    assert "with: crl resume" in said and "--rounds" not in said
    assert "of 7 rounds asked for" in crl("status", "tiny").out


@pytest.mark.slow
def test_until_ends_with_the_same_round_however_often_it_is_typed(
    crl: Crl, fake: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = crl("train", fake, "--rounds", "1", "--until", "2")
    assert both.code == 2 and "--rounds 1 and --until 2" in both.err and not (runs / "tiny").exists()
    assert crl("train", fake, "--until", "1", "--no-prefect").code == 0
    monkeypatch.setenv("CRL_FAKE", json.dumps({"learn": ["raise", ""]}))
    stopped = crl("train", fake, "--until", "2", "--no-prefect")
    assert stopped.code == 1 and "round 2" in stopped.out
    monkeypatch.setenv("CRL_FAKE", "{}")
    on = crl("train", fake, "--until", "2", "--no-prefect")
    assert on.code == 0 and "experiment tiny: 1 round into" in on.out and "--until" not in on.out.partition("next:")[2]
    complete = stage_digests(runs / "tiny")
    assert len(complete) == 9
    for last in ("2", "1"):
        again = crl("train", fake, "--until", last, "--no-prefect")
        assert again.code == 0 and f"has its rounds until {last}" in again.out
    assert stage_digests(runs / "tiny") == complete


def test_a_second_process_is_refused_with_the_owner_named(crl: Crl, fake: Path, runs: Path) -> None:
    from crl.config.load import load_experiment
    from crl.run.directory import RunDirectory

    run = RunDirectory.create_or_open(load_experiment(fake), runs)
    with Lease.acquire(run.path, seconds=60):
        for command in (
            ("train", fake, "--no-prefect"),
            ("resume", "tiny"),
            ("redo", "tiny", "--from", "0000/prepare"),
        ):
            outcome = crl(*command)
            assert outcome.code == 3 and "process" in outcome.err, command
        assert "running: process" in crl("status", "tiny").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("conf/nothing.yaml",), "conf/nothing.yaml"),
        (("conf/tiny.yaml", "--set", "method.sed=2"), "did you mean 'seed'"),
        (("conf/tiny.yaml", "--set", "method.roles.actor.model=tinny"), "tinny"),
        (("conf/tiny.yaml", "--set", "method.families.0.environment.size_min=9"), "size_min"),
        (("conf/tiny.yaml", "--set", "method.rollout.group_size=3"), "even"),
        (("conf/tiny.yaml", "--set", "nonsense"), "KEY=VALUE"),
        (("conf/tiny.yaml", "--set", "runtime.min_free_gigabytes=1e9"), "free"),
    ],
)
def test_bad_input_is_refused_before_work_starts(
    crl: Crl, fake: Path, runs: Path, arguments: tuple[str, ...], said: str
) -> None:
    outcome = crl("train", *arguments)
    assert outcome.code == 2 and said in outcome.err and "Traceback" not in outcome.err
    assert not list(runs.glob("*/rounds")), "nothing was run"


def test_a_changed_method_names_the_keys(crl: Crl, fake: Path, runs: Path) -> None:
    from crl.config.load import load_experiment
    from crl.run.directory import RunDirectory

    RunDirectory.create_or_open(load_experiment(fake), runs)
    outcome = crl("train", fake, "--set", "method.seed=99")
    assert outcome.code == 2 and "seed" in outcome.err and "99" in outcome.err


@pytest.mark.slow
def test_redo_refuses_what_is_no_stage(crl: Crl, fake: Path, runs: Path) -> None:
    assert crl("train", fake, "--rounds", "1", "--no-prefect").code == 0
    for place in ("spread", "one/spread", "0001/", "0001/nothing", "0009/draw"):
        assert crl("redo", "tiny", "--from", place).code == 2, place
    assert len(stage_digests(runs / "tiny")) == 5
