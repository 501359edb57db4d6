"""A bank of a real run is trained with in another one, by the command line and the real engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from crl.audit.verify import verify
from crl.records import BufferItem, Credit, Retrieval, rows_of
from crl.report.bank import entries_after
from crl.report.story import story_of
from crl.report.why import why
from crl.run.directory import RunDirectory
from tests.tiny_run import CONFIG, ROUNDS, crl, digests, options

pytestmark = pytest.mark.slow

# With experience to begin with there is nothing to warm up, and a round is quick.
SETTINGS = {"method__recipe__warm_start": "null", "method__evaluation__every": 0}


def test_a_round_is_trained_with_an_imported_bank(finished: Path, tmp_path: Path) -> None:
    runs = [tmp_path / "a", tmp_path / "b"]
    overrides = [f"--set={pair}" for pair in options(**SETTINGS)[1::2] if "warm_start." not in pair]
    exported = tmp_path / "bank"
    crl(finished.parent, "bank", "export", "tiny", "--to", exported)
    crl(runs[0], "bank", "import", CONFIG, exported, *overrides)
    crl(runs[1], "bank", "import", CONFIG, finished, "--round", str(ROUNDS), *overrides)
    for root in runs:
        crl(root, "train", CONFIG, "--rounds", "1", "--no-prefect", *overrides)
    assert digests(runs[0] / "tiny") == digests(runs[1] / "tiny"), "from the export or from the run: the same bank"
    path = runs[0] / "tiny"
    run = RunDirectory.open(path)
    assert verify(path) == []
    imported = {each.entry_id for each in entries_after(path, 0)}
    assert {name.removeprefix(f"tiny-r{ROUNDS:04d}-") for name in imported} == {
        each.entry_id for each in entries_after(finished, ROUNDS)
    }
    chosen = {row.entry_id for row in rows_of(Retrieval, run.read(1, "plan", Retrieval)) if row.chosen}
    credits = rows_of(Credit, run.read(1, "credit", Credit))
    assert chosen and chosen <= imported and {row.entry_id for row in credits} == chosen
    foreign = {row.generation_id for row in credits}
    assert not foreign & {row.generation_id for row in rows_of(BufferItem, run.read(1, "credit", BufferItem))}
    entry = credits[0].entry_id
    story = why(path, entry)
    before = story.versions[0].imported
    assert len(story.uses) == sum(row.entry_id == entry for row in credits) and before is not None
    assert story_of(before.story) == why(finished, before.entry_id)
    told = crl(runs[0], "bank", "why", "tiny", entry).stdout
    assert "imported from experiment tiny" in told and "written by extractor" in told and credits[0].episode_id in told
