"""Where near-duplicates are refused: what the stages that write operations find, and what becomes of it in the bank."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from crl.audit.again import _StoredVectors, remake
from crl.audit.audit import problems_of
from crl.bank.segments import text_digest
from crl.errors import RecordDamaged
from crl.policies.embedders import LexicalEmbedder
from crl.recipes.complementary.resembling import Resembling
from crl.records import (
    BankEvent,
    BufferItem,
    Distillation,
    Generation,
    Operation,
    Resemblance,
    rows_of,
    schema_of,
    table_of,
)
from crl.rounds.context import StageContext
from crl.rounds.proposal import proposal_of
from crl.rounds.recipe import recipe_of, recorded_bank
from crl.rounds.stage import SCORES, Read
from tests.unit.extractor.conftest import ScriptedPolicy
from tests.unit.recipes.test_candidates import HOLE, ICE, add
from tests.unit.report.scripted import Ask, ScriptedRun, Services, experiment

NEAR = {
    "method__recipe__bank__duplicates": "near",
    "method__recipe__bank__similarity": 0.9,
    "method__recipe__merge__chunk": 3,
}


class Extractor(Services):
    def __init__(self, *answers: str) -> None:
        super().__init__()
        left = iter(answers)
        self.scripted = ScriptedPolicy(lambda prompt, generator: next(left))

    def policy(self, role: str, weights: Any) -> Any:
        return self.scripted


class NextRound:
    """Reads a run, and the tables of one more round as they come."""

    def __init__(self, run: ScriptedRun) -> None:
        self.path, self._run, self._number = run.path, run.run, run.newest + 1
        self.tables: dict[tuple[str, type], Any] = {}

    def read(self, round_number: int, stage: str, row_type: type) -> Any:
        if round_number < self._number:
            return self._run.read(round_number, stage, row_type)
        return self.tables.get((stage, row_type), schema_of(row_type).empty_table())


def context(run: ScriptedRun, reader: NextRound, stage: str, services: Any) -> StageContext:
    class Writer:
        directory = run.path

        def write(self, row_type: type, table: Any) -> None:
            reader.tables[stage, row_type] = table

        def share(self, relative: str, content: bytes) -> None:
            raise AssertionError("no texts are written here")

    number = run.newest + 1
    return StageContext(
        method=run.method, recipe=run.recipe, stage=run.recipe.stage(run.method, number, stage), round_number=number,
        reader=reader, writer=Writer(), services=services, progress=lambda metrics: None,
    )  # fmt: skip


@pytest.fixture
def run(tmp_path):
    with ScriptedRun(tmp_path, experiment(**NEAR)) as scripted:
        scripted.initialize()
        scripted.play(Ask("add", HOLE), Ask("add", ICE), Ask("add", "swim", family="pond"))
        yield scripted


def pairs(rows: Any) -> set[tuple[str, str]]:
    return {(row.content_digest, row.other_digest) for row in rows}


def found(run: ScriptedRun, *operations: Operation, **changes: Any) -> set[tuple[str, str]]:
    if changes:
        recipe = run.method.recipe
        changed = recipe.model_copy(update={"retrieval": recipe.retrieval.model_copy(update=changes)})
        run.method = run.method.model_copy(update={"recipe": changed})
    ctx = context(run, NextRound(run), "distill", Services())
    resembling = Resembling(ctx, recorded_bank(run.run, run.recipe, run.newest))
    resembling.find(operations)
    vectors = LexicalEmbedder().embed([HOLE, f"{HOLE} too"])
    assert all(row.similarity >= 0.9 for row in resembling.rows) and vectors[0] @ vectors[1] > 0.9
    return pairs(resembling.rows)


def test_new_texts_are_compared_with_the_bank_and_with_each_other(run):
    operations = [add(2, 0, f"{HOLE} too"), add(2, 1, "unlike all"), add(2, 2, f"{HOLE} also"), add(2, 3, "\ud800")]
    digests = {text: text_digest(text) for text in (HOLE, f"{HOLE} too", f"{HOLE} also")}
    both = sorted([digests[f"{HOLE} too"], digests[f"{HOLE} also"]])
    assert found(run, *operations) == {
        (digests[f"{HOLE} too"], digests[HOLE]), (digests[f"{HOLE} also"], digests[HOLE]), (both[0], both[1]),
    }  # fmt: skip


def test_the_scope_is_that_of_retrieval(run):
    elsewhere = add(2, 0, f"{HOLE} too", family="pond")
    assert found(run, elsewhere) == set()
    assert found(run, elsewhere, scope="bank") == {(text_digest(f"{HOLE} too"), text_digest(HOLE))}


def test_an_empty_bank_has_nothing_to_resemble(tmp_path):
    """The first round of a run, and the first note about a task family."""
    with ScriptedRun(tmp_path, experiment(**NEAR)) as first:
        first.initialize()
        one, two = add(1, 0, HOLE), add(1, 1, f"{HOLE} too")
        assert found(first, one, two) == {tuple(sorted((text_digest(HOLE), text_digest(f"{HOLE} too"))))}
        assert found(first, one, scope="bank") == set()
        first.play(Ask("add", HOLE))
        assert found(first, add(2, 0, HOLE, family="pond")) == set()


def test_what_plainly_says_something_else_resembles_nothing(tmp_path):
    """Neither in the bank nor beside it, however near the embedder holds it."""
    with ScriptedRun(tmp_path, experiment(**NEAR)) as run:
        run.initialize()
        run.play(Ask("add", "coin, wine, mask"))
        new = [add(2, 0, "mask, wine, coin"), add(2, 1, "wine, coin, mask"), add(2, 2, "coin, wine, mask too")]
        held, listed = text_digest("coin, wine, mask"), text_digest("coin, wine, mask too")
        assert found(run, *new) == {(listed, held)}


def test_a_round_is_consolidated_from_its_rows_alone(run):
    """Distilled texts, then a merge that goes by the same rules; nothing of it asks the embedder again."""
    reader = NextRound(run)
    distilled = [add(2, 0, f"{HOLE} too"), add(2, 1, "keep calm"), add(2, 2, "keep calm and", family="pond")]
    reader.tables["distill", Operation] = table_of(Operation, distilled)
    resembling = Resembling(context(run, reader, "distill", Services()), recorded_bank(run.run, run.recipe, 1))
    resembling.find(distilled)
    reader.tables["distill", Resemblance] = table_of(Resemblance, resembling.rows)
    # The lake holds HOLE, ICE and `keep calm`; of what is merged, the first resembles HOLE, which is not replaced.
    services = Extractor("MERGE 2,3: " + HOLE + " now", "MERGE 1,2: swim and keep calm")
    ctx = context(run, reader, "merge", services)
    ctx.stage.run_part(ctx, 0)
    merges = rows_of(Operation, reader.tables["merge", Operation])
    shown = [row.prompt for row in rows_of(Generation, reader.tables["merge", Generation])]
    assert len(rows_of(Distillation, reader.tables["merge", Distillation])) == 2 and f"1. {HOLE}\n2. {ICE}" in shown[0]
    assert pairs(rows_of(Resemblance, reader.tables["merge", Resemblance])) == {
        (text_digest(f"{HOLE} now"), text_digest(HOLE)), (text_digest(f"{HOLE} now"), text_digest(f"{HOLE} too")),
    }  # fmt: skip

    def rows(row_type: type, name: str) -> list[Any]:
        return rows_of(row_type, reader.read(2, name, row_type)) if name != SCORES else []

    bank = recorded_bank(run.run, run.recipe, 1)
    applied = proposal_of(run.recipe, run.method, 2, rows, lambda: bank, run.run.path).applied()
    hole = bank.taken(bank.rows_of(bank.table["entry_id"].to_pylist()))[0].entry_id
    assert [(event.kind, event.reason, event.repeats) for event in applied.events] == [
        ("rejected", "near_duplicate", hole), ("add", None, None), ("add", None, None),
        ("rejected", "near_duplicate", hole), ("merge", None, None),
    ]  # fmt: skip
    assert [row.family for row in merges] == ["lake", "pond"]


def test_only_stages_of_such_a_method_read_and_write_it(run):
    stages = {stage.name: stage for stage in run.recipe.stages}
    assert all(Resemblance in stages[name].writes for name in ("distill", "merge"))
    assert Read("consolidate", -1, "bank") in stages["distill"].reads
    plain = recipe_of(experiment().method)
    assert all(Resemblance not in stage.writes for stage in plain.stages)


def test_a_run_with_near_duplicates_verifies_and_its_bank_can_be_made_again(run):
    near = {"near": [(f"{HOLE} too", HOLE)]}
    first, second = run.play(Ask("add", f"{HOLE} too"), Ask("add", "keep calm"), **near)
    events = rows_of(BankEvent, run.run.read(2, "consolidate", BankEvent))
    assert [(event.entry_id, event.reason) for event in events] == [(first, "near_duplicate"), (second, None)]
    assert problems_of(run.run, run.recipe) == []
    name = "rounds/0002/consolidate/bank_changes.parquet"
    before = (run.path / name).read_bytes()
    (run.path / name).unlink()
    assert remake(run.run, run.recipe, 2, "consolidate", run.services).files[name] == before
    (run.path / "rounds/0002/distill/resemblances.parquet").write_bytes(b"nothing")
    with pytest.raises(RecordDamaged, match="resemblances"):
        remake(run.run, run.recipe, 2, "consolidate", run.services)


@pytest.mark.parametrize(("rewritten", "shares"), [("keep calm", False), (f"{HOLE} also", True), (None, True)])
def test_a_near_duplicate_shares_the_uses_of_what_still_resembles_it(run, rewritten, shares):
    """The entry that it repeats may be rewritten later in the round."""
    first = recorded_bank(run.run, run.recipe, 1).table["entry_id"][0].as_py()
    asked = [Ask("add", f"{HOLE} too")] + ([Ask("update", rewritten, entry=first)] if rewritten else [])
    run.play(*asked, near=[(f"{HOLE} too", HOLE), (f"{HOLE} too", f"{HOLE} also")])
    event = rows_of(BankEvent, run.run.read(2, "consolidate", BankEvent))[0]
    assert (event.reason, event.repeats) == ("near_duplicate", first)
    items = rows_of(BufferItem, run.run.read(2, "credit", BufferItem))
    assert [item.repeated_entries for item in items] == ([[first]] if shares else [])


def test_no_text_has_no_vector(tmp_path: Path) -> None:
    """DreamGym's pools may gain nothing in a round; `crl mend` makes them again with stored vectors."""
    services = cast(Any, SimpleNamespace(embedder=LexicalEmbedder))
    assert _StoredVectors(tmp_path, services).embed([]).shape == (0, LexicalEmbedder().dimension)
