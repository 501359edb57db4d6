"""The TensorBoard files of a run, as TensorBoard itself reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crl.config import Runtime
from crl.config.load import load_experiment
from crl.engine.events import RoundDone
from crl.run.directory import RunDirectory, manifests
from crl.run.head import heads
from crl.trackers.subscriber import LEDGER, Trackers
from tests.unit.report.builder import build_run

ROOT = Path(__file__).parents[3]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(build_run(tmp_path / "tiny"), "tiny", load_experiment(ROOT / "conf" / "tiny.yaml").method)
    write(run)
    return run


def write(run: RunDirectory) -> None:
    warnings: list[str] = []
    with Trackers(run, Runtime(), warnings.append) as tracking:
        tracking(RoundDone(2, 1.0))
    assert warnings == []


def read(run: RunDirectory) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run.path / "tensorboard"))
    found.Reload()
    return found


def test_metrics_have_the_round_as_their_step(run: RunDirectory) -> None:
    found = read(run)
    guided = [(event.step, event.value) for event in found.Scalars("success/guided")]
    assert guided == [(2, 0.5)]
    assert [event.step for event in found.Scalars("bank/entries")] == [0, 1, 2]


def test_it_has_the_tables_the_method_and_the_link_to_the_record(run: RunDirectory) -> None:
    found = read(run)
    texts = [event.tensor_proto.string_val[0].decode() for event in found.Tensors("rounds")]
    assert len(texts) == 3 and "| 2 |" in texts[-1]
    kept = heads(manifests(run.path)).values()
    assert all(f"`crl verify {run.path} --head {head}`" in text for text, head in zip(texts, kept, strict=True))
    assert b"seed" in found.Tensors("method")[0].tensor_proto.string_val[0]
    layout = found.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0]
    assert b"held-out success by condition" in layout


def test_a_round_written_again_replaces_its_file_and_nothing_is_left_over(run: RunDirectory) -> None:
    names = sorted(path.name for path in (run.path / "tensorboard").iterdir())
    assert names == [f"events.out.tfevents.{number:010d}" for number in range(3)]
    (run.path / LEDGER).unlink()
    write(run)
    assert sorted(path.name for path in (run.path / "tensorboard").iterdir()) == names
    assert len(read(run).Scalars("success/guided")) == 1
