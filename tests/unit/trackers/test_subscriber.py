"""Complete rounds reach the trackers: each once, in order, whatever fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from crl.audit.verify import verify
from crl.config import Runtime
from crl.config.load import load_experiment
from crl.engine.events import Event, LogLine, RoundDone, RoundStarted
from crl.errors import BadInput
from crl.report import views
from crl.report.view_files import Pinned
from crl.run.directory import RunDirectory, manifests
from crl.run.head import heads
from crl.trackers import subscriber
from crl.trackers.base import RoundMetrics, TrackedRun
from crl.trackers.subscriber import Trackers
from tests.unit.report.builder import build_run

ROOT = Path(__file__).parents[3]
HERE = "tests.unit.trackers.test_subscriber"


class Recorder:
    """Keeps what it is given; `fails` names a round that it cannot write."""

    requires: ClassVar[str | None] = None
    opened: ClassVar[list[TrackedRun]] = []
    written: ClassVar[list[RoundMetrics]] = []
    closed: ClassVar[int] = 0
    fails: ClassVar[set[int]] = set()

    def __init__(self, run: TrackedRun, label: str = "recorder") -> None:
        self.id = run.earlier or f"{label}-{len(self.opened)}"
        Recorder.opened.append(run)

    def write(self, round_metrics: RoundMetrics) -> None:
        if round_metrics.round in self.fails:
            raise ConnectionError("the server is gone")
        Recorder.written.append(round_metrics)

    def close(self) -> None:
        Recorder.closed += 1


class Stuck(Recorder):
    """Does not come back before the test is over."""

    over: ClassVar[threading.Event] = threading.Event()

    def write(self, round_metrics: RoundMetrics) -> None:
        self.over.wait()


class Quits(Recorder):
    """A library that ends the interpreter."""

    def write(self, round_metrics: RoundMetrics) -> None:
        raise SystemExit(3)


RECORDER, STUCK, QUITS = f"{HERE}:Recorder", f"{HERE}:Stuck", f"{HERE}:Quits"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, HERE, sys.modules[__name__])
    Recorder.opened, Recorder.written, Recorder.closed, Recorder.fails = [], [], 0, set()


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    method = load_experiment(ROOT / "conf" / "tiny.yaml").method
    return RunDirectory(build_run(tmp_path / "tiny"), "tiny", method)


def track(run: RunDirectory, last: int, *trackers: Any) -> list[str]:
    """What a driver's rounds up to `last` lead to; returns the warnings."""
    warnings: list[str] = []
    with Trackers(run, Runtime(trackers=trackers), warnings.append) as tracking:
        for number in range(last + 1):
            events: tuple[Event, ...] = (RoundStarted(number, ()), LogLine("x"), RoundDone(number, 1.0))
            for event in events:
                tracking(event)
    return warnings


def rounds() -> list[int]:
    return [each.round for each in Recorder.written]


def test_each_round_is_written_once_in_order_and_a_resumed_run_adds_what_is_new(run: RunDirectory) -> None:
    assert track(run, 1, RECORDER) == []
    assert rounds() == [0, 1] and Recorder.closed == 1
    assert track(run, 2, RECORDER) == [] and rounds() == [0, 1, 2]
    assert [each.earlier for each in Recorder.opened] == [None, "recorder-0"]
    assert track(run, 2, RECORDER) == [] and rounds() == [0, 1, 2]
    assert len(Recorder.opened) == 2, "with nothing to write nothing is opened"


def test_metrics_come_from_the_record(run: RunDirectory) -> None:
    track(run, 2, RECORDER)
    last = Recorder.written[-1]
    assert last.values["success/guided"] == 0.5 and last.values["bank/entries"] == 1.0
    assert {row["round"] for row in last.success} <= {0, 1, 2} and "| 2 |" in last.tables
    assert "| 2 |" not in Recorder.written[1].tables and max(row["round"] for row in Recorder.written[1].success) < 2
    assert len({each.digest for each in Recorder.written}) == 3
    assert {each.round: each.head for each in Recorder.written} == heads(manifests(run.path))
    told = Recorder.opened[0]
    assert told.path == run.path and told.experiment == "tiny" and told.method["seed"] == run.method.seed


def test_a_round_is_read_once_however_many_follow(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[int]] = []

    class Counted(Pinned):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            read.append(sorted({int(path.split("/rounds/")[1][:4]) for path in self.paths() if "/rounds/" in path}))

    monkeypatch.setattr(views, "Pinned", Counted)
    later = shutil.move(run.path / "rounds/0002", run.path.parent)
    with Trackers(run, Runtime(trackers=[RECORDER]), pytest.fail) as tracking:
        feed = tracking._feeds[0]
        feed.write_until(1)
        assert read == [[0, 1], [0, 1]], "once for its summary, once for its metrics"
        shutil.move(later, run.path / "rounds")
        feed.write_until(2)
    assert read[2:] == [[2], [2]] and rounds() == [0, 1, 2]


@pytest.mark.slow
def test_a_round_that_failed_comes_with_the_next_and_is_warned_of_once(run: RunDirectory) -> None:
    Recorder.fails = {0, 1, 2}
    (warning,) = track(run, 2, RECORDER)
    assert RECORDER in warning and "the server is gone" in warning and rounds() == []
    Recorder.fails = set()
    assert track(run, 2, RECORDER) == [] and rounds() == [0, 1, 2]


@pytest.mark.slow
def test_one_tracker_that_fails_is_in_nobody_elses_way(run: RunDirectory) -> None:
    warnings = track(run, 2, QUITS, "nothing-like-this", {"kind": RECORDER, "color": "red"}, RECORDER)
    assert len(warnings) == 3 and "SystemExit" in warnings[0]
    assert rounds() == [0, 1, 2]


def test_a_tracker_that_hangs_keeps_no_run_from_ending(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriber, "_PATIENCE_SECONDS", 0.5)
    (warning,) = track(run, 0, STUCK)
    Stuck.over.set()
    assert "still write" in warning


@pytest.mark.slow
def test_a_round_that_was_redone_with_another_result_is_written_again(run: RunDirectory) -> None:
    track(run, 2, RECORDER)
    shutil.copytree(run.stage_path(2, "evaluate"), run.stage_path(2, "evaluate_again"))  # other stages, another digest
    assert track(run, 2, RECORDER) == []
    assert rounds() == [0, 1, 2, 2]


@pytest.mark.slow
def test_a_tracker_that_begins_anew_gets_every_round(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    track(run, 1, RECORDER)
    begin = Recorder.__init__
    monkeypatch.setattr(Recorder, "__init__", lambda self, run: begin(self, replace(run, earlier=None)))
    assert track(run, 2, RECORDER) == [] and rounds() == [0, 1, 0, 1, 2]
    monkeypatch.undo()
    assert track(run, 2, RECORDER) == [] and rounds() == [0, 1, 0, 1, 2]


@pytest.mark.slow
def test_other_options_are_another_tracker_and_get_every_round(run: RunDirectory) -> None:
    track(run, 1, RECORDER)
    track(run, 1, {"kind": RECORDER, "label": "second"})
    assert rounds() == [0, 1, 0, 1] and Recorder.opened[1].earlier is None


def test_no_trackers_leave_nothing(run: RunDirectory) -> None:
    before = sorted(path.name for path in run.path.iterdir())
    assert track(run, 2) == [] and sorted(path.name for path in run.path.iterdir()) == before


def test_verification_does_not_mind_them(run: RunDirectory, tmp_path: Path) -> None:
    copy = RunDirectory(Path(shutil.copytree(run.path, tmp_path / "copy")), "tiny", run.method)
    track(run, 2, "tensorboard")
    told = [[problem.found for problem in verify(each.path)] for each in (run, copy)]
    assert told[0] == told[1]


def test_choices_are_held_against_their_class_before_a_run() -> None:
    kinds = Runtime(trackers=["tensorboard", RECORDER, {"kind": RECORDER, "label": "x"}]).trackers
    for choice in kinds:
        choice.check()
    wrong = {
        "tensorbord": "(?s)there is no tracker 'tensorbord'.*tensorboard",
        "no.module:Class": "no.module",
        f"{HERE}:Nobody": "Nobody",
    }
    for kind, told in wrong.items():
        (choice,) = Runtime(trackers=[kind]).trackers
        with pytest.raises(BadInput, match=told):
            choice.check()
    (choice,) = Runtime(trackers=[{"kind": RECORDER, "color": "red"}]).trackers
    with pytest.raises(BadInput, match=r"(?s)color.*options label"):
        choice.check()


@pytest.mark.parametrize(
    "url", ["https://me:s3cret@host/mlflow", "postgresql://me:s3cret@host/db", "https://t0ken@host"]
)
def test_a_url_with_a_password_is_refused_and_not_repeated(url: str) -> None:
    (choice,) = Runtime(trackers=[{"kind": RECORDER, "label": url}]).trackers
    with pytest.raises(BadInput, match=r"(?s)option label .*MLFLOW_TRACKING_PASSWORD") as refusal:
        choice.check()
    assert "s3cret" not in str(refusal.value) and "t0ken" not in str(refusal.value)
    (choice,) = Runtime(trackers=[{"kind": RECORDER, "label": "https://host/mlflow?to=a@b"}]).trackers
    choice.check()


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "requires", "no_such_library")
    (choice,) = Runtime(trackers=[RECORDER]).trackers
    with pytest.raises(BadInput, match=r"(?s)needs the library no_such_library.*--set 'runtime.trackers=\[\]'"):
        choice.check()


def test_another_package_adds_a_tracker_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[crl.trackers]\nnotebook = outside_tracker:Notebook\n")
    source = "class Notebook:\n    id = 'n'\n    def __init__(self, run, color='red'): ...\n"
    (tmp_path / "outside_tracker.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    (choice,) = Runtime(trackers=[{"kind": "notebook", "color": "blue"}]).trackers
    choice.check()
    assert choice.load().__name__ == "Notebook" and choice.options == {"color": "blue"}


@pytest.mark.slow
def test_the_driving_process_stays_light(run: RunDirectory) -> None:
    code = f"""
        import sys
        from pathlib import Path
        from crl.config import Runtime
        from crl.config.load import load_experiment
        from crl.engine.events import RoundDone
        from crl.run.directory import RunDirectory
        from crl.trackers.subscriber import Trackers

        run = RunDirectory(Path({str(run.path)!r}), "tiny", load_experiment(Path("conf/tiny.yaml")).method)
        with Trackers(run, Runtime(), print) as tracking:
            tracking(RoundDone(2, 1.0))
        print(len(list((run.path / "tensorboard").iterdir())))
        print(*[name for name in ("torch", "transformers", "prefect", "great_expectations") if name in sys.modules])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["3"]
