"""What the merge stage shows the extractor: groups of entries that resemble each other, those of this round too."""

from __future__ import annotations

import re

import pytest

from crl.policies.embedders import LexicalEmbedder
from crl.records import Distillation, Generation, Operation, schema_of, table_of
from crl.rounds.context import MemoryWriter, StageContext
from tests.unit.extractor.conftest import ScriptedPolicy
from tests.unit.report.scripted import Ask, ScriptedRun, Services, experiment

HOLE = "keep to the left of the hole and walk down to the goal slowly"
ICE = "the ice is slippery so push against the wall to go straight"


class Extractor(Services):
    """Merges the first two entries it is shown, whatever they say."""

    def __init__(self) -> None:
        super().__init__()
        self.scripted = ScriptedPolicy(lambda prompt, generator: "MERGE 1,2: both at once")

    def policy(self, role, weights):
        assert role == "extractor"
        return self.scripted


class NextRound:
    """Reads a run, and one more round's operations."""

    def __init__(self, run, operations) -> None:
        self.path, self._run, self._operations = run.path, run.run, operations
        self._number = run.newest + 1

    def read(self, round_number, stage, row_type):
        if round_number < self._number:
            return self._run.read(round_number, stage, row_type)
        return table_of(Operation, self._operations) if row_type is Operation else schema_of(row_type).empty_table()


def merged(run, operations):
    """The rows that the merge stage writes in the next round."""
    services, number = Extractor(), run.newest + 1
    writer = MemoryWriter()
    stage = run.recipe.stage(run.method, number, "merge")
    stage.run_part(
        StageContext(
            method=run.method, recipe=run.recipe, stage=stage, round_number=number,
            reader=NextRound(run, operations), writer=writer, services=services, progress=lambda metrics: None,
        ),
        0,
    )  # fmt: skip
    assert not writer.shared, "the merge stage writes no texts"
    return {row_type: writer.rows(row_type) for row_type in writer.tables}


def change_merge(run, **changes):
    """Give the run's method another merge."""
    recipe = run.method.recipe
    changed = recipe.model_copy(update={"merge": recipe.merge.model_copy(update=changes)})
    run.method = run.method.model_copy(update={"recipe": changed})


def add(number, index, text, family="lake"):
    return Operation(
        operation_id=f"r{number}-o{index}", distillation_id="d", generation_id="g", round=number, index=index,
        kind="add", family=family, entry_id=f"new{index}", parents=[], episode_ids=["e"], text=text,
        embedder_cut=False,
    )  # fmt: skip


@pytest.fixture
def run(tmp_path):
    made = experiment(method__recipe__merge__candidates="near_duplicates", method__recipe__merge__chunk=3)
    with ScriptedRun(tmp_path, made) as scripted:
        scripted.initialize()
        scripted.play(
            Ask("add", "something else entirely, alone in its way"),
            Ask("add", ICE),
            Ask("add", HOLE),
            Ask("add", f"{ICE} now"),
            Ask("add", f"{HOLE} too", family="pond"),
        )
        yield scripted


def test_only_entries_that_resemble_another_of_their_family_are_shown(run):
    number = run.newest + 1
    tables = merged(run, [add(number, 0, f"{HOLE} please"), add(number, 1, f"{ICE} again"), add(number, 2, "unlike")])
    shown = [re.findall(r"^\d+\. (.*)$", row.prompt, re.MULTILINE) for row in tables[Generation]]
    # The group with the oldest entry first, entries by age; new texts of this round are among them.
    assert shown == [[ICE, f"{ICE} now", f"{ICE} again"], [HOLE, f"{HOLE} please"]]
    assert [row.family for row in tables[Distillation]] == ["lake", "lake"]
    # Both say the same: the second text is held by then, and consolidation would reject it.
    assert [row.kind for row in tables[Operation]] == ["merge", "merge"]


def test_groups_of_the_whole_bank_go_across_families(run):
    change_merge(run, scope="bank")
    tables = merged(run, [])
    shown = [re.findall(r"^\d+\. (.*)$", row.prompt, re.MULTILINE) for row in tables[Generation]]
    assert shown == [[ICE, f"{ICE} now"], [HOLE, f"{HOLE} too"]]
    assert [row.distillation_id for row in tables[Distillation]] == ["m-r2-bank-0", "m-r2-bank-1"]
    # One of each family, and the first that was shown is of the lake.
    assert [(row.kind, row.family) for row in tables[Operation]] == [("merge", "lake")] * 2


def test_the_whole_bank_is_walked_through_where_all_are_candidates(run):
    change_merge(run, scope="bank", candidates="all", chunk=5)
    (row,) = merged(run, [])[Distillation]
    assert len(row.source_entry_ids) == 5 and row.family == "lake"


def test_how_alike_is_a_matter_of_the_method(run):
    change_merge(run, similarity=0.999)
    assert merged(run, [])[Distillation] == []


def test_the_lexical_embedder_finds_these_texts_alike():
    """What the tests above stand on."""
    vectors = LexicalEmbedder().embed([ICE, f"{ICE} now", HOLE])
    assert vectors[0] @ vectors[1] > 0.9 > vectors[0] @ vectors[2]
