"""Every query of docs/queries.md says what a plain computation over the rows says."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from scipy import stats

from benchmarks.made_run import Size, make
from crl.records import ROW_TYPES, BankText, Row, rows_of
from crl.report.views import query
from crl.run.manifest import Manifest

PAGE = (Path(__file__).parents[2] / "docs" / "queries.md").read_text(encoding="utf-8")
QUESTION = re.compile(
    r"^## (?P<number>\d+)\. [^\n]*\n\n(?P<reading>.+?)```sql\n(?P<sql>.*?)```", re.MULTILINE | re.DOTALL
)
QUERIES = {int(match["number"]): match["sql"] for match in QUESTION.finditer(PAGE)}
ROUNDS = 8


class Rows:
    """Every row of a run with the round and the stage that wrote it, by table; and the bank after every round."""

    def __init__(self, run: Path) -> None:
        self.by_table: dict[str, list[tuple[int, str, Any]]] = defaultdict(list)
        self.seconds: list[tuple[int, str, float]] = []
        self.timings: list[tuple[str, str, dict[str, float]]] = []
        types: dict[str, type[Row]] = {row_type.table: row_type for row_type in ROW_TYPES}
        for path in sorted(run.glob("rounds/*/*")):
            number, stage = int(path.parent.name), path.name
            provenance = Manifest.load(path).provenance
            self.seconds.append((number, stage, provenance["seconds"]))
            self.timings += [(stage, work, found) for work, found in provenance["timings"].items()]
            for file in sorted(path.glob("*.parquet")):
                for row in rows_of(types[file.stem], pq.read_table(file)):
                    self.by_table[file.stem].append((number, stage, row))
        self.texts = {
            row.content_digest: row.text
            for file in run.glob("bank/segments/*.parquet")
            for row in rows_of(BankText, pq.read_table(file))
        }
        self.bank: dict[int, dict[str, Any]] = {0: {}}
        for number in range(ROUNDS + 1):
            self.bank[number] = dict(self.bank.get(number - 1, {}))
            for changed_in, _, change in self.by_table["bank_changes"]:
                if changed_in == number and change.removed:
                    del self.bank[number][change.entry_id]
                elif changed_in == number:
                    self.bank[number][change.entry_id] = change

    def __getitem__(self, table: str) -> list[Any]:
        return [row for _, _, row in self.by_table[table]]

    def of(self, table: str, *stages: str) -> list[Any]:
        return [row for _, stage, row in self.by_table[table] if stage in stages]

    def chosen(self) -> list[Any]:
        return [row for row in self["retrievals"] if row.chosen]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("asked"), ROUNDS, Size(capacity=14), seed=3)


@pytest.fixture(scope="module")
def rows(run: Path) -> Rows:
    return Rows(run)


def mean(values: Any) -> float | None:
    listed = [float(value) for value in values if value is not None]
    return sum(listed) / len(listed) if listed else None


def grouped(rows: list[Any], key: Callable[[Any], Any]) -> list[tuple[Any, list[Any]]]:
    found: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return sorted(found.items())


def growth(rows: Rows) -> list[tuple[Any, ...]]:
    told = []
    for number in range(ROUNDS + 1):
        changes = [row for changed_in, _, row in rows.by_table["bank_changes"] if changed_in == number]
        size, before = len(rows.bank[number]), len(rows.bank[number - 1]) if number else 0
        removed = sum(row.removed for row in changes)
        told.append((number, size, size - before, len(changes) - removed, removed))
    return told


def changed(rows: Rows) -> list[tuple[Any, ...]]:
    before, after = rows.bank[2], rows.bank[5]
    told = []
    for entry in before.keys() | after.keys():
        old, new = before.get(entry), after.get(entry)
        if old is None or new is None or old.content_digest != new.content_digest:
            kind = "added" if old is None else "removed" if new is None else "changed"
            texts = [None if row is None else rows.texts[row.content_digest] for row in (old, new)]
            told.append((kind, (new or old).family, entry, *texts))
    return sorted(told, key=lambda row: row[:3])


def most_helpful(rows: Rows) -> list[tuple[Any, ...]]:
    told = []
    for entry, uses in grouped(rows["credits"], lambda row: row.entry_id):
        n = len(uses)
        if n < 3:
            continue
        won = sum(row.outcome > 0 for row in uses)
        p, (low, high) = won / n, stats.binomtest(won, n).proportion_ci(0.95, method="wilson")
        twins = mean((row.free_mean + 1) / 2 for row in uses if row.free_mean is not None)
        verdict = "unclear"
        if twins is not None:
            verdict = "helps" if low > twins else "harms" if high < twins else "unclear"
        told.append((entry, n, p, low, high, twins, mean(row.guided_minus_free for row in uses), verdict))
    best = sorted(told, key=lambda row: (-row[3], row[0]))[:10]
    worst = sorted(told, key=lambda row: (row[4], row[0]))[:10]
    return sorted({*best, *worst}, key=lambda row: (-row[3], row[0]))


def never_retrieved(rows: Rows) -> list[tuple[Any, ...]]:
    used = {row.entry_id for row in rows.chosen()}
    told = [
        (row.family, entry, ROUNDS - row.created_round, rows.texts[row.content_digest])
        for entry, row in rows.bank[ROUNDS].items()
        if entry not in used
    ]
    return sorted(told, key=lambda row: (-row[2], row[1]))[:100]


def lineage(rows: Rows) -> list[tuple[Any, ...]]:
    uses = Counter(row.entry_id for row in rows["credits"])
    entry = min(uses, key=lambda name: (-uses[name], name))
    operations = {row.operation_id: row for row in rows["operations"]}
    generations = {row.generation_id: row for row in rows["generations"]}
    success = {row.episode_id: row.success for row in rows["episodes"]}
    updates = {row.weights_digest: row.updates for row in rows["weights"] if row.role == "extractor"}
    credits = {row.episode_id: row for row in rows["credits"]}
    written = [row for row in rows["bank_events"] if row.entry_id == entry and row.kind in ("import", "add", "update")]
    told = []
    for version, event in enumerate(written, start=1):
        operation = operations.get(event.operation_id)
        generation = generations[operation.generation_id] if operation else None
        sources = operation and [
            {"episode_id": name, "success": success[name]} for name in sorted(operation.episode_ids)
        ]
        until = written[version].round if version < len(written) else ROUNDS + 1
        found = [
            row for row in rows.chosen()
            if (row.entry_id, row.content_digest) == (entry, event.after_digest)
            and event.round <= row.bank_round < until
        ]  # fmt: skip
        version_row = (
            version, event.kind, event.round, rows.texts[event.after_digest], sources,
            generation and generation.prompt, generation and updates[generation.weights_digest],
        )  # fmt: skip
        for use in sorted(found, key=lambda row: (row.round, row.episode_id)):
            credit = credits[use.episode_id]
            told.append((*version_row, use.episode_id, credit.outcome, credit.guided_minus_free))
        told += [] if found else [(*version_row, None, None, None)]
    return told


def malformed(rows: Rows) -> list[tuple[Any, ...]]:
    told = []
    for number, outputs in grouped(rows["distillations"], lambda row: row.round):
        bad = [row for row in outputs if row.verdict == "malformed"]
        reasons = sorted({row.reason_code for row in bad}) or None
        told.append((number, len(outputs), len(bad), len(bad) / len(outputs), reasons))
    return told


def staleness(rows: Rows) -> list[tuple[Any, ...]]:
    told = []
    for number, used in grouped(rows.chosen(), lambda row: row.round):
        ages = [number - rows.bank[row.bank_round][row.entry_id].updated_round for row in used]
        told.append((number, len(ages), mean(ages), statistics.median(ages), mean(age > 3 for age in ages)))
    return told


def concentration(rows: Rows) -> list[tuple[Any, ...]]:
    told = []
    for number, used in grouped(rows.chosen(), lambda row: row.round):
        bank = rows.bank[used[0].bank_round]
        uses = Counter(row.entry_id for row in used)
        each = sorted(uses[entry] for entry in bank)  # entries without a use count 0
        apart = sum(abs(one - other) for one in each for other in each)
        gini = apart / (2 * len(each) * sum(each))
        told.append((number, len(bank), len(uses), sum(each[-10:]) / sum(each), gini))
    return told


def by_family(rows: Rows) -> list[tuple[Any, ...]]:
    told, paired = [], []
    for _, played in grouped(rows.of("episodes", "collect"), lambda row: (row.round, row.group)):
        unbroken = [row for row in played if row.error is None]
        paired += unbroken if len({row.guided for row in unbroken}) == 2 else []
    for family, played in grouped(paired, lambda row: row.family):
        guided, free = ([float(row.success) for row in played if row.guided == kind] for kind in (True, False))
        error = math.sqrt(statistics.variance(guided) / len(guided) + statistics.variance(free) / len(free))
        told.append((family, mean(guided), mean(free), mean(guided) - mean(free), error))  # type: ignore[operator]
    return told


def held_out(rows: Rows) -> list[tuple[Any, ...]]:
    told = []
    for number, played in grouped(rows.of("evaluations", "evaluate"), lambda row: row.round):
        conditions = {(row.condition, row.family, row.environment_seed): float(row.success) for row in played}
        tasks = [key[1:] for key in conditions if key[0] == "with_bank"]
        if not tasks:
            continue
        pairs = [(conditions["with_bank", *task], conditions["without_bank", *task]) for task in tasks]
        differences = [one - other for one, other in pairs]
        error = statistics.stdev(differences) / math.sqrt(len(pairs))
        told.append(
            (
                number,
                len(pairs),
                mean(one for one, _ in pairs),
                mean(other for _, other in pairs),
                mean(differences),
                error,
            )
        )
    return told


def evictions(rows: Rows) -> list[tuple[Any, ...]]:
    left = [row for row in rows["bank_events"] if row.kind in ("drop", "evict")]
    told = []
    for (family, kind), events in grouped(left, lambda row: (row.family, row.kind)):
        for reason in sorted({row.reason for row in events}, key=str):
            ages = [
                row.round - rows.bank[row.round - 1][row.entry_id].created_round
                for row in events
                # What came and went in one round was never in a bank: it left no change.
                if row.reason == reason and row.entry_id in rows.bank[row.round - 1]
            ]
            if ages:
                told.append((family, kind, reason, len(ages), mean(ages), min(ages), max(ages)))
    return told


def useful_writers(rows: Rows) -> list[tuple[Any, ...]]:
    updates = {row.weights_digest: row.updates for row in rows["weights"] if row.role != "embedder"}
    writer = {row.generation_id: row.weights_digest for row in rows["generations"]}
    used = [row for row in rows["credits"] if row.generation_id in writer]
    return [
        (
            number, len({row.entry_id for row in uses}), len(uses), mean(row.outcome > 0 for row in uses),
            mean(row.guided_minus_free for row in uses),
        )
        for number, uses in grouped(used, lambda row: updates[writer[row.generation_id]])
    ]  # fmt: skip


def seconds(rows: Rows) -> list[tuple[Any, ...]]:
    trained = [(stage, taken) for number, stage, taken in rows.seconds if number > 0]
    whole = sum(taken for _, taken in trained)
    told = []
    for stage, listed in grouped(trained, lambda row: row[0]):
        taken = [each for _, each in listed]
        told.append((stage, len(taken), statistics.median(taken), max(taken), sum(taken) / whole))
    # Equal shares may differ in their last bit, by the order in which they were added up.
    return sorted(told, key=lambda row: (-round(row[4], 6), row[0]))


def invalid_actions(rows: Rows) -> list[tuple[Any, ...]]:
    return [
        (
            number, sum(row.invalid_actions for row in played) / sum(row.turns for row in played),
            mean(row.invalid_actions > 0 for row in played), sum(row.error is not None for row in played),
        )
        for number, played in grouped(rows.of("episodes", "collect"), lambda row: row.round)
    ]  # fmt: skip


def won_alone(rows: Rows) -> list[tuple[Any, ...]]:
    saved = []
    for _, played in grouped(rows.of("episodes", "collect"), lambda row: (row.round, row.group)):
        free = [row for row in played if not row.guided and row.error is None]
        if free and not any(row.success for row in free):
            saved += [row for row in played if row.guided and row.success]
    told = [
        (
            entry,
            len({(row.round, row.group) for row in won}),
            min(row.round for row in won),
            max(row.round for row in won),
            max(won, key=lambda row: row.round).experience,
        )
        for entry, won in grouped(saved, lambda row: row.entry_ids[0])
    ]
    return sorted(told, key=lambda row: (-row[1], row[0]))[:20]


def costs(rows: Rows) -> list[tuple[Any, ...]]:
    games = [(row.round, "collect", "guided" if row.guided else "free", row) for row in rows["episodes"]]
    games += [(row.round, "evaluate", row.condition, row) for row in rows["evaluations"]]
    told = []
    for place, played in grouped(games, lambda each: each[:3]):
        read, wrote = ([row.tokens_read for *_, row in played], [row.tokens_sampled for *_, row in played])
        told.append((*place, len(played), mean(row.turns for *_, row in played), mean(read), mean(wrote),
                     (sum(read) + sum(wrote)) / 1e6))  # fmt: skip
    return told


def latencies(rows: Rows) -> list[tuple[Any, ...]]:
    told = []
    for place, noted in grouped(rows.timings, lambda each: each[:2]):
        items, seconds, batches = (sum(each[2][name] for each in noted) for name in ("items", "seconds", "batches"))
        longest = max(each[2]["longest"] for each in noted)
        told.append((*place, items, seconds / items, seconds / batches, longest))
    return told


EXPECTED: dict[int, Callable[[Rows], list[tuple[Any, ...]]]] = {
    1: growth, 2: changed, 3: most_helpful, 4: never_retrieved, 5: lineage, 6: malformed, 7: staleness,
    8: concentration, 9: by_family, 10: held_out, 11: evictions, 12: useful_writers, 13: seconds, 14: invalid_actions,
    15: won_alone, 16: costs, 17: latencies,
}  # fmt: skip


def test_there_are_seventeen_questions_each_with_a_line_on_how_to_read_the_answer() -> None:
    assert sorted(QUERIES) == sorted(EXPECTED) == list(range(1, 18))
    assert PAGE.count("\n## ") == 17
    assert all(len(match["reading"].split()) >= 6 for match in QUESTION.finditer(PAGE))


@pytest.mark.parametrize("number", sorted(EXPECTED), ids=lambda number: EXPECTED[number].__name__)
def test_the_answer_is_what_the_rows_come_to(run: Path, rows: Rows, number: int) -> None:
    expected = EXPECTED[number](rows)
    _, found = query(run, QUERIES[number])
    assert len(expected) > 1, "the made-up run has something to say about it"
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for value, wanted in zip(one, other, strict=True):
            if isinstance(wanted, float):
                assert value == pytest.approx(wanted, rel=1e-9, abs=1e-9), (one, other)
            else:
                assert value == wanted, (one, other)


def test_the_made_up_run_fills_every_table(rows: Rows) -> None:
    empty = {row_type.table for row_type in ROW_TYPES} - set(rows.by_table)
    of_switches = {  # of settings that are off by default; no question of the page is about them
        "questions", "stripped_contexts", "success_rates", "critiques", "use_rewards", "entry_usefulness",
        "resemblances", "raw_rewards", "trials", "trial_results", "text_effects", "suppressions", "candidate_utilities",
        "verdicts", "teacher_contexts", "teacher_logprobs", "behavior_logprobs",
    }  # fmt: skip
    assert empty <= {"bank_texts", "approvals", "imported_entries", "samples"} | of_switches
    assert {row.kind for row in rows["bank_events"]} >= {"import", "add", "update", "merge", "drop", "evict"}
    assert any(row.kind == "merge" for row in rows["distillations"])
