"""One SQL query traces every experience of a real run; it says what a plain walk over the rows says."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crl.cli import main
from crl.records import (
    BankEvent,
    BankText,
    Credit,
    Episode,
    Generation,
    Operation,
    Retrieval,
    Row,
    Weights,
    rows_of,
)
from crl.report.view_sql import LINEAGE
from crl.report.views import query
from crl.run.directory import RunDirectory
from tests.tiny_run import ROUNDS


class Rows:
    """Every row of a type in the run, read stage by stage, the oldest first."""

    def __init__(self, run_path: Path) -> None:
        self._run = RunDirectory.open(run_path)

    def __call__(self, row_type: type[Row]) -> list[Any]:
        places = [(number, stage) for number in self._run.rounds() for stage in self._run.complete_stages(number)]
        return [row for place in places for row in rows_of(row_type, self._run.read(*place, row_type))]


@pytest.fixture(scope="module")
def rows(finished: Path) -> Rows:
    return Rows(finished)


def _texts(run_path: Path) -> dict[str, str]:
    import pyarrow.parquet as pq

    tables = [pq.read_table(path) for path in run_path.glob("bank/segments/*.parquet")]
    return {row.content_digest: row.text for table in tables for row in rows_of(BankText, table)}


def _expected(run_path: Path, rows: Rows) -> list[dict[str, Any]]:
    """The lineage, walked from bank event to operation to generation to weights, and from retrieval to credit."""
    operations = {row.operation_id: row for row in rows(Operation)}
    generations = {row.generation_id: row for row in rows(Generation)}
    episodes = {row.episode_id: row for row in rows(Episode)}
    credits = {row.episode_id: row for row in rows(Credit)}
    weights: dict[str, Weights] = {}
    for row in rows(Weights):
        if row.role == "extractor":
            weights.setdefault(row.weights_digest, row)
    texts, retrievals = _texts(run_path), rows(Retrieval)
    versions: dict[str, int] = {}
    found = []
    for event in rows(BankEvent):
        if event.kind not in ("add", "update", "merge"):
            continue
        entry = event.entry_id
        versions[entry] = versions.get(entry, 0) + 1
        operation = operations[event.operation_id]
        # A text that another one of the same round replaced never came into a snapshot: only its operation has it.
        assert hashlib.sha256(operation.text.encode()).hexdigest() == event.after_digest
        assert texts.get(event.after_digest, operation.text) == operation.text
        generation = generations[operation.generation_id]
        writer = weights[generation.weights_digest]
        version = {
            "entry_id": entry,
            "version": versions[entry],
            "kind": event.kind,
            "written_round": event.round,
            "text": operation.text,
            "source_episodes": [(each, episodes[each].success) for each in sorted(operation.episode_ids)],
            "prompt": generation.prompt,
            "output": generation.output,
            "extractor_checkpoint": writer.checkpoint or writer.source,
            "extractor_updates": writer.updates,
            "extractor_digest": generation.weights_digest,
        }
        uses = []
        for retrieval in retrievals:
            played = episodes.get(retrieval.episode_id)
            wrote_it = (retrieval.entry_id, retrieval.content_digest, retrieval.generation_id) == (
                entry, event.after_digest, operation.generation_id
            )  # fmt: skip
            if not (retrieval.chosen and wrote_it and played is not None and played.guided):
                continue
            credit = credits[retrieval.episode_id]
            twins = [each for each in episodes.values() if (each.round, each.group) == (played.round, played.group)]
            free = [1.0 if each.success else -1.0 for each in twins if not each.guided and each.round >= 1]
            outcome = 1.0 if played.success else -1.0
            mean = sum(free) / len(free) if free else None
            assert (credit.outcome, credit.free_mean) == (outcome, mean)
            uses.append({
                "used_in": played.episode_id, "used_round": played.round, "used_success": played.success,
                "outcome": outcome, "free_mean": mean, "guided_minus_free": None if mean is None else outcome - mean,
            })  # fmt: skip
        nothing = dict.fromkeys(
            ("used_in", "used_round", "used_success", "outcome", "free_mean", "guided_minus_free"), None
        )
        found += [{**version, **use} for use in sorted(uses, key=lambda use: use["used_in"]) or [nothing]]
    return sorted(found, key=lambda row: (row["entry_id"], row["version"], row["used_round"] or 0))


def _found(run_path: Path, sql: str) -> list[dict[str, Any]]:
    names, rows = query(run_path, sql)
    listed = [dict(zip(names, row, strict=True)) for row in rows]
    for row in listed:
        row["source_episodes"] = [(each["episode_id"], each["success"]) for each in row["source_episodes"] or []]
    return listed


@pytest.mark.parametrize("sql", [LINEAGE, "FROM lineage"], ids=["the query itself", "the view"])
def test_one_query_says_what_the_rows_say(finished: Path, rows: Rows, sql: str) -> None:
    expected = _expected(finished, rows)
    assert len([row for row in expected if row["used_in"]]) == len(rows(Credit)) > 0
    assert {row["kind"] for row in expected} >= {"add", "update"}
    # Later experience was written by an extractor that had been trained: by the warm start, then by the method.
    assert {row["extractor_checkpoint"] for row in expected} >= {"rounds/0000/warm_start_extractor/checkpoint"}
    found = _found(finished, sql)
    assert [{name: row[name] for name in expected[0]} for row in found] == expected


def test_every_entry_of_the_bank_is_traced_to_episodes_that_were_played(finished: Path, rows: Rows) -> None:
    played = {row.episode_id for row in rows(Episode)}
    _, listed = query(
        finished,
        f"SELECT entry_id, source_episodes FROM lineage JOIN bank USING (entry_id) WHERE bank.round = {ROUNDS}",
    )
    assert listed
    for entry, sources in listed:
        assert sources and {each["episode_id"] for each in sources} <= played, entry


@pytest.fixture
def why(finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """What `crl bank why` prints."""
    monkeypatch.setenv("COLUMNS", "400")

    def run(entry: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["bank", "why", str(finished), entry])
        assert not ended.value.code
        return capsys.readouterr().out

    return run


@pytest.mark.slow
def test_bank_why_prints_the_same_facts(finished: Path, rows: Rows, why: Callable[[str], str]) -> None:
    expected = _expected(finished, rows)
    for entry in dict.fromkeys(row["entry_id"] for row in expected):
        printed = re.sub(r"[│├└─\s]+", " ", why(entry))
        own = [row for row in expected if row["entry_id"] == entry]
        for row in own:
            assert f"version {row['version']}, {row['kind']} in round {row['written_round']}" in printed
            assert " ".join(row["text"].split()) in printed
            for episode, success in row["source_episodes"]:
                assert f"{episode} ({'won' if success else 'lost'})" in printed
            assert f"{row['extractor_checkpoint']} ({row['extractor_updates']} updates)" in printed
            assert row["extractor_digest"][:12] in printed
            assert " ".join(row["prompt"].split())[-100:] in printed
            assert " ".join(row["output"].split())[-100:] in printed
            if row["used_in"] is None:
                assert "never used" in printed
                continue
            assert f"{row['used_in']}: {'won' if row['used_success'] else 'lost'}" in printed
            if row["guided_minus_free"] is not None:
                difference = f"guided minus free {row['guided_minus_free']:+.2f} (free mean {row['free_mean']:+.2f})"
                assert difference in printed.split(f"{row['used_in']}:")[1]
        used = [row for row in own if row["version"] == 1 and row["used_in"]]
        if used:
            credit = sum(row["outcome"] for row in used) / len(used)
            assert f"used in {len(used)} episode{'' if len(used) == 1 else 's'}, credit {credit:+.2f}" in printed
