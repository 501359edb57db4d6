"""`crl evaluate`: what it refuses, before any model is loaded, and what it says and keeps of an evaluation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from crl.report.success import Rate, average, wilson
from crl.rounds.evaluate import Choice, Evaluated
from crl.run.directory import RunDirectory
from crl.run.evaluations import keep_evaluation
from crl.run.manifest import Manifest
from crl.run.pruned import Pruned, add_pruned
from tests.unit.cli.conftest import Outcome
from tests.unit.lab.table.recorded import WITH, WITHOUT, rows
from tests.unit.report.builder import retrieval, write_stage

Crl = Callable[..., Outcome]


def test_weights_that_retention_deleted_are_no_damage(crl: Crl, room: Path) -> None:
    write_stage(room, 1, "plan", [[retrieval(0)]])
    manifest = Manifest.load(room / "rounds/0001/update_actor")
    add_pruned(
        room,
        Pruned(round=1, stage="update_actor", path="checkpoint", sha256s={}, bytes=0, manifest=manifest.check),
        token=1,
    )
    outcome = crl("evaluate", "room", "--round", "1")
    assert outcome.code == 2, outcome.err
    assert "weights of round 1 were deleted by retention" in outcome.err
    assert "one of the rounds 0" in outcome.err, "the base model needs no checkpoint"


def test_a_kept_evaluation_that_is_damaged_is_not_called_rebuilt(crl: Crl, room: Path) -> None:
    told = crl("mend", "room")
    path, _ = keep_evaluation(RunDirectory.open(room), 2, rows(2, {("lake", WITH): (1,)}), {}, {})
    assert crl("mend", "room").err == told.err
    (path / "manifest.json").write_text("{}", encoding="utf-8")
    mended = crl("mend", "room")
    assert mended.code == 4 and "rebuilt" not in mended.out.split(path.name)[0].splitlines()[-1]
    assert f"mend     mkdir -p {room}/damaged && mv {path} {room}/damaged/" in mended.out
    assert [int(each.err.split()[1]) for each in (told, mended)] == [1, 2]


def test_a_round_that_is_not_there_is_refused(crl: Crl, room: Path) -> None:
    outcome = crl("evaluate", "room", "--round", "7")
    assert outcome.code == 2 and "round 7" in outcome.err


def test_seeds_that_no_row_can_hold_are_refused(crl: Crl, room: Path) -> None:
    outcome = crl("evaluate", "room", "--seeds", f"{2**63}:8")
    assert outcome.code == 2 and f"--seeds '{2**63}:8'" in outcome.err and "START:COUNT" in outcome.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--tasks", "lake,sea"), ("no task 'sea'", "some of lake")),
        (("--tasks", "sea", "--tasks", "lake"), ("no task 'sea'",)),
        (("--tasks", ","), ("no task is named", "some of lake")),
        (("--conditions", "both"), ("no condition 'both'", "with, without, random")),
        (("--episodes", "0"), ("--episodes", "greater than or equal to 1")),
        (("--episodes", "100001"), ("100001 episodes", "from 1 to 100000")),
        (("--episodes", "4", "--seeds", "2000000:4"), ("both given",)),
        (("--seeds", "10:4"), ("overlap the training seeds of task lake",)),
    ],
)
def test_what_cannot_be_chosen_is_refused(crl: Crl, room: Path, words: tuple[str, ...], told: tuple[str, ...]) -> None:
    outcome = crl("evaluate", "room", *words)
    assert outcome.code == 2 and all(text in outcome.err for text in told), outcome.err
    assert not (room / "evaluations").exists()


WON = {("lake", WITH): [1, 1, 0], ("lake", WITHOUT): [0, 1, 0], ("pond", WITH): [1], ("pond", WITHOUT): [0]}


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[Choice]:
    """The choices that were played; what came of each is `WON`."""
    choices: list[Choice] = []

    def play(run: object, number: int | None, choice: Choice) -> Evaluated:
        choices.append(choice)
        return Evaluated(2, rows(2, WON), {})

    monkeypatch.setattr("crl.engine.evaluation.evaluate_round", play)
    monkeypatch.setattr("crl.preflight.check_evaluation", lambda *words: None)
    return choices


def test_the_results_by_task_and_on_average(crl: Crl, room: Path, played: list[Choice]) -> None:
    said = crl("evaluate", "room").out
    lines = {tuple(line.split()[:3]): line.split() for line in said.splitlines() if " bank " in line}
    low, high = (round(100 * end) for end in wilson(2, 3))
    assert " ".join(lines["lake", "with", "bank"][3:]) == f"2/3 67 % [{low}–{high}] 0.33 6.0 27 13 6% 3"
    both = average([Rate(1, 3), Rate(0, 1)])
    assert both is not None
    mean = next(line for line in said.splitlines() if line.startswith("macro average  without bank"))
    assert " ".join(mean.split()[4:8]) == f"– {both.percent} [{both.span}]"
    assert played == [Choice()]


def test_what_was_chosen_is_what_is_played(crl: Crl, room: Path, played: list[Choice]) -> None:
    crl(
        "evaluate",
        "room",
        "--tasks",
        "lake, lake",
        "--tasks",
        "lake",
        "--episodes",
        "7",
        "--conditions",
        "with,without",
    )
    assert played == [Choice(tasks=("lake",), episodes=7, conditions=("with", "without"))]


def test_what_a_judge_gave_no_score_is_counted(crl: Crl, room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crl.engine.evaluation.evaluate_round", lambda *words, **more: Evaluated(2, [], {}, 3))
    monkeypatch.setattr("crl.preflight.check_evaluation", lambda *words: None)
    assert "3 episodes are left out: their judge gave no score" in crl("evaluate", "room").out
    assert json.loads(crl("evaluate", "room", "--json").out)["unscored"] == 3


def test_json_is_all_there_is_on_standard_output(crl: Crl, room: Path, played: list[Choice], tmp_path: Path) -> None:
    data = json.loads(crl("evaluate", "room", "--json", "--out", tmp_path / "rows.parquet").out)
    assert (data["round"], data["conditions"], data["seeds"]["lake"]) == (2, [WITH, WITHOUT], [1_000_000, 3])
    lake = next(each for each in data["results"] if (each["task"], each["condition"]) == ("lake", WITH))
    assert (lake["won"], lake["episodes"], lake["low"], lake["high"]) == (2, 3, *wilson(2, 3))
    assert lake["score"] == pytest.approx(1 / 3) and lake["tokens"] == lake["tokens_read"] + lake["tokens_written"]
    assert [each["condition"] for each in data["averages"]] == [WITH, WITHOUT]
    assert Path(data["kept"]).is_dir() and pq.read_metadata(tmp_path / "rows.parquet").num_rows == 8


def test_another_precision_than_was_asked_for_is_said(
    crl: Crl, room: Path, played: list[Choice], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crl.policies.machine.replaced", lambda method: "actor: computed in float32")
    assert crl("evaluate", "room").out.startswith("actor: computed in float32\n")
    done = crl("evaluate", "room", "--json")
    assert json.loads(done.out) and done.err.startswith("actor: computed in float32\n")


def test_the_rows_are_kept_once_and_a_table_finds_them(crl: Crl, room: Path, played: list[Choice]) -> None:
    first, second = crl("evaluate", "room").out, crl("evaluate", "room").out
    assert "the rows are kept in " in first and "the same rows were kept before" in second
    assert len(list((room / "evaluations").iterdir())) == 1
    shown = crl("table", "room", "--round", "2")
    assert "with results of `crl evaluate`: room" in shown.out, shown.err


def test_a_run_that_cannot_be_written_is_evaluated_all_the_same(
    crl: Crl, room: Path, played: list[Choice], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *words: object, **options: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    outcome = crl("evaluate", "room")
    assert outcome.code == 0 and "2/3" in outcome.out and "the rows were not kept" in outcome.err
