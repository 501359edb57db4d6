"""What became of each round of a run, as data: success, bank, operations, updates, health, seconds, alarms.

Round 0 comes twice where there was a warm start: the base models, then the models that round 1 starts from. As text
for a terminal: `round_tables.py`. :class:`History` keeps what it read: a complete round does not change.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crl.errors import BadInput, CrlError
from crl.report.data_docs import StageChecks, checks_of
from crl.report.diff import BankDiff, bank_diff
from crl.report.success import NONE, Average, ConditionResult, Rate
from crl.report.views import reading
from crl.run.directory import RunDirectory
from crl.run.validations import VALIDATIONS, Verdict, load_verdict

if TYPE_CHECKING:
    import duckdb

_ROUND, _VERDICT = re.compile(r"(\d{4,})"), re.compile(r"(\d{4,})\.json")
_MANY = 50
"""With more rounds to read than this, one query over all is quicker than a list of them."""
_KEPT = 64
"""Bank diffs and checks kept: they hold texts, and pages show the newest rounds only."""

# No bank is put together here: where a file of one is gone, its round has no metrics of it.
_VIEWS = frozenset(
    {
        "bank", "bank_changes", "bank_events", "bank_snapshots", "buffer", "distillations", "episodes",
        "evaluations", "metrics", "operations", "stages", "weights",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cost:
    """What the games of a condition took, in all."""

    games: int
    actions: int
    """Turns."""
    tokens_read: int
    """Tokens the actor read."""
    tokens_sampled: int


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one kind of work took in a stage."""

    batches: int
    items: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RoundSummary:
    """What became of one round. A stage that has not run leaves its metrics empty."""

    round: int
    label: str
    """The round number; `0 base` is the models before the warm start."""
    recipe: str = ""
    """Kind of the recipe that made it; empty where the run's method cannot be read."""
    guided: Rate = NONE
    free: Rate = NONE
    synthetic: Rate = NONE
    """Of the episodes played in an experience model, those that it calls won."""
    with_bank: Rate = NONE
    """Held-out success with an experience in the prompt where one was found."""
    without_bank: Rate = NONE
    random: Rate = NONE
    """Held-out success of a policy that takes any legal action; measured once, with round 0."""
    tasks: Mapping[str, Mapping[str, Rate]] = field(default_factory=dict)
    """By condition (guided, free, synthetic, with_bank, without_bank, random) and task family."""
    bank: int | None = None
    """Entries after the round."""
    operations: Mapping[str, int] = field(default_factory=dict)
    """Operations asked for, by kind."""
    outputs: int = 0
    """Extractor outputs."""
    malformed: int = 0
    """Of them malformed."""
    buffer: int | None = None
    """Extractor outputs that are scored and wait to be trained, after the round."""
    updates: Mapping[str, int] = field(default_factory=dict)
    """RL updates so far, by the role that owns the weights."""
    buffer_trained: int = 0
    """Extractor outputs that this round trains."""
    buffer_dropped: int = 0
    changes: Mapping[str, int] = field(default_factory=dict)
    """Bank events by kind: import, add, update, merge, drop, evict, keep, return, rejected."""
    arrived: Mapping[int, int] = field(default_factory=dict)
    """Entries that came into the bank, by the round they were created in."""
    left: Mapping[int, int] = field(default_factory=dict)
    """Entries that left it, likewise."""
    rewritten: int = 0
    """Entries that stayed and changed."""
    malformed_by: Mapping[str, int] = field(default_factory=dict)
    """Malformed outputs by reason, most frequent first."""
    conditions: tuple[Mapping[str, Any], ...] = ()
    """Rows of the view `success_by_condition`."""
    costs: Mapping[str, Cost] = field(default_factory=dict)
    """By condition: guided, free, synthetic, with_bank, without_bank."""
    evaluations: tuple[ConditionResult, ...] = ()
    """Held-out results by task and condition, in order of their names."""
    timings: Mapping[tuple[str, str], Timing] = field(default_factory=dict)
    """By stage and kind of work, as in the view `timings`."""
    broken: tuple[Mapping[str, Any], ...] = ()
    """Rows of the view `broken_games`."""
    clipped: Mapping[str, float] = field(default_factory=dict)
    """Share of the trained tokens whose ratio the objective clipped, by role; a role that was not updated is absent."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Share of the actor's squared gradient, by objective other than the policy's; empty where it was not measured."""
    merged: Mapping[str, int] = field(default_factory=dict)
    """Entries that merging was `shown`; of them `keep`, `merge` and `drop`; and the `texts` that it wrote."""
    health: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the stage `health` (`crl/rounds/health.py`); none in round 0."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds per stage, in the order they ran."""
    validation: Verdict | None = None
    """What Great Expectations found in the round after its commit; None until then."""
    alarms: tuple[str, ...] = ()
    """Metrics outside their bounds (`what is wrong (stage: name value)`), and what the validation is alarmed about."""


def random_policy(summaries: Sequence[RoundSummary]) -> Rate:
    """Held-out success of the random policy; of no episodes where it was not measured."""
    return next((each.random for each in summaries if each.random.episodes), NONE)


def summarize(run_path: Path, rounds: Sequence[int] | None = None) -> list[RoundSummary]:
    """One entry per round that has a committed stage, oldest first; of some rounds only where `rounds` names them."""
    with reading(run_path, rounds, views=_VIEWS) as connection:
        numbers = [row[0] for row in connection.execute("SELECT round FROM rounds ORDER BY round").fetchall()]
        metrics, base = _metrics(connection)
    found, recipe = list[RoundSummary](), _recipes(run_path)
    for number in numbers:
        if any(isinstance(metric, Rate) and metric.episodes for metric in base[number].values()):
            found.append(RoundSummary(number, f"{number} base", recipe(number), **base[number]))
        if (verdict := load_verdict(run_path, number)) is not None:
            alarms = tuple(f"validate: {alarm}" for alarm in verdict.alarms)
            metrics[number] |= {"validation": verdict, "alarms": (*metrics[number].get("alarms", ()), *alarms)}
        found.append(RoundSummary(number, str(number), recipe(number), **metrics[number]))
    return found


def _recipes(run_path: Path) -> Callable[[int], str]:
    """The kind of recipe of each round: of a fork's first rounds that of the run that made them."""
    try:
        run = RunDirectory.open(run_path)
        ancestors = run.lineage.ancestors
    except CrlError:  # a run whose method cannot be read has metrics all the same
        return lambda number: ""
    made = [(each.round, str(each.method["recipe"]["kind"])) for each in ancestors]
    return lambda number: next((kind for last, kind in made if number <= last), run.method.recipe.kind)


Metrics = defaultdict[int, dict[str, Any]]
"""Fields of a :class:`RoundSummary` by round."""


def _metrics(connection: duckdb.DuckDBPyConnection) -> tuple[Metrics, Metrics]:
    """The metrics of every round, each of all rounds in one query; then those of the models before the warm start."""
    found: Metrics = defaultdict(dict)
    base: Metrics = defaultdict(dict)

    def fetch(sql: str) -> list[tuple[Any, ...]]:
        return connection.execute(sql).fetchall()

    def nested(name: str, value: Callable[[Any], Any], sql: str) -> None:
        """A metric that has names: what a query gives for a round and a name."""
        for number, key, each in fetch(sql):
            found[number].setdefault(name, {})[key] = value(each)

    def listed(name: str, number: int, each: Any, into: Metrics = found) -> None:
        into[number][name] = (*into[number].get(name, ()), each)

    for row in connection.sql("SELECT * FROM success_by_condition").to_arrow_table().to_pylist():
        number, stage, condition, games = row["round"], row["stage"], row["condition"], row["games"]
        listed("conditions", number, row)
        rate = _rate(row["won"], games, row["broken"], row["effective"])
        if stage == "evaluate_base" and condition != "random":
            base[number][condition] = rate
        # Further attempts (ERL) that go by the old instructions are no games of the free condition.
        elif stage in ("collect", "evaluate"):
            found[number][condition] = rate
            if condition != "random":
                took = (round(games * row[name]) for name in ("actions", "tokens_read", "tokens_sampled"))
                found[number].setdefault("costs", {})[condition] = Cost(games, *took)
    rates: dict[tuple[Any, ...], Rate] = {}
    for number, condition, family, stage, *counts in fetch(
        "SELECT round, condition, family, stage, won, games, broken, effective FROM success_by_task ORDER BY ALL"
    ):
        rates[number, stage, family, condition] = rate = _rate(*counts)
        if stage != "evaluate_base":
            found[number].setdefault("tasks", {}).setdefault(condition, {})[family] = rate
    passes: defaultdict[tuple[Any, ...], dict[int, Average]] = defaultdict(dict)
    for number, stage, task, condition, k, *value in fetch(
        "SELECT round, stage, family, condition, k, pass_at_k, low, high FROM pass_at_k ORDER BY ALL"
    ):
        passes[number, stage, task, condition][k] = Average(*value)
    for number, stage, task, condition, score, actions, read, written, invalid, guided in fetch(
        "SELECT round, stage, family, condition, avg(reward), avg(turns), avg(tokens_read), avg(tokens_sampled), "
        "coalesce(sum(invalid_actions) / nullif(sum(turns), 0), 0), count_if(guided) FROM evaluations "
        "WHERE stage IN ('evaluate', 'evaluate_base') GROUP BY ALL ORDER BY round, stage, family, condition"
    ):
        place = number, stage, task, condition
        result = ConditionResult(
            task, condition, (rates[place],), score, actions, read, written, float(invalid), int(guided),
            dict(passes[place]),
        )  # fmt: skip
        listed("evaluations", number, result, base if stage == "evaluate_base" else found)
    for row in connection.sql("SELECT * FROM broken_games ORDER BY ALL").to_arrow_table().to_pylist():
        listed("broken", row["round"], row)
    for number, stage, work, *timed in fetch(
        "SELECT round, draw_of(stage) AS stage, work, sum(batches)::BIGINT, sum(items)::BIGINT, sum(seconds) "
        "FROM timings GROUP BY ALL ORDER BY ALL"
    ):
        found[number].setdefault("timings", {})[stage, work] = Timing(*timed)
    for number, entries in fetch("SELECT round, entries FROM bank_snapshots"):
        found[number]["bank"] = entries
    for number, how, created, count in fetch(
        "SELECT round, CASE WHEN removed THEN 'left' WHEN round = 0 OR created_round = round THEN 'arrived' "
        "ELSE 'rewritten' END, created_round, count(*) FROM bank_changes GROUP BY ALL ORDER BY ALL"
    ):
        if how == "rewritten":
            found[number][how] = found[number].get(how, 0) + count
        else:
            found[number].setdefault(how, {})[created] = count
    # A stage that kept an empty buffer has one of 0, not an unknown one: so stages first, rows second.
    for number, waiting, trained, dropped in fetch(
        # With FILTER, not count_if: that is NULL, and not 0, where every row is NULL.
        "SELECT stages.round, count(*) FILTER (buffer.status = 'waiting' AND buffer.uses > 0), "
        "count(*) FILTER (buffer.status = 'selected'), count(*) FILTER (buffer.status = 'dropped') FROM stages "
        "LEFT JOIN buffer USING (round, stage) WHERE stages.stage = 'credit' GROUP BY stages.round"
    ):
        found[number] |= {"buffer": waiting, "buffer_trained": trained, "buffer_dropped": dropped}
    for number, outputs, malformed in fetch(
        "SELECT round, count(*), count_if(verdict = 'malformed') FROM distillations "
        "WHERE stage IN ('distill', 'merge') GROUP BY round"
    ):
        found[number] |= {"outputs": outputs, "malformed": int(malformed)}
    nested(
        "operations", int,
        "SELECT round, kind, count(*) FROM operations WHERE stage IN ('distill', 'merge') GROUP BY ALL ORDER BY ALL",
    )  # fmt: skip
    nested(
        "malformed_by", int,
        "SELECT round, reason_code, count(*) AS count FROM distillations WHERE stage IN ('distill', 'merge') "
        "AND verdict = 'malformed' GROUP BY ALL ORDER BY count DESC, reason_code",
    )  # fmt: skip
    nested(
        "updates", int,
        "SELECT round, role, max(updates) FROM weights WHERE role <> 'embedder' GROUP BY ALL ORDER BY ALL",
    )  # fmt: skip
    nested("changes", int, "SELECT round, kind, count(*) FROM bank_events GROUP BY ALL ORDER BY ALL")
    nested(
        "clipped", float,
        "SELECT round, stage[8:] AS role, sum(value) FROM metrics WHERE name IN ('clipped_low', 'clipped_high') "
        "AND starts_with(stage, 'update_') GROUP BY ALL ORDER BY ALL",
    )  # fmt: skip
    nested(
        "shares", float,
        "SELECT round, name[:-7], value FROM metrics WHERE starts_with(stage, 'update_') AND ends_with(name, '_share') "
        "ORDER BY ALL",
    )  # fmt: skip
    nested(
        "merged", int,
        "SELECT round, 'shown', count(DISTINCT id) FROM (SELECT round, unnest(source_entry_ids) AS id FROM "
        "distillations WHERE stage = 'merge') GROUP BY round UNION ALL SELECT round, kind, "
        "sum(CASE kind WHEN 'merge' THEN len(parents) ELSE 1 END) FROM operations WHERE stage = 'merge' GROUP BY ALL "
        "UNION ALL SELECT round, 'texts', count_if(kind = 'merge') FROM operations WHERE stage = 'merge' "
        "GROUP BY round ORDER BY ALL",
    )  # fmt: skip
    nested("health", float, "SELECT round, name, value FROM metrics WHERE stage = 'health' ORDER BY ALL")
    nested(
        "seconds", float,
        "SELECT round, draw_of(stage), sum(seconds) FROM stages WHERE seconds IS NOT NULL "
        "GROUP BY ALL ORDER BY round, min(sequence), 2",
    )  # fmt: skip
    for number, stage, name, value, alarm in fetch(
        "SELECT round, stage, name, value, alarm FROM metrics WHERE alarm IS NOT NULL ORDER BY round, stage, name"
    ):
        listed("alarms", number, f"{alarm} ({stage}: {name} {value:.3g})")
    return found, base


def _rate(won: int, games: int, broken: int, effective: float) -> Rate:
    return Rate(int(won), int(games), int(broken), None if effective == games else effective)


class History:
    """The rounds of one run, read so that one more costs the same however many there are. Nothing is written.

    The time stamps of a round's directory and of its verdict show when a stage came or was set aside, and when the
    round was validated.
    """

    def __init__(self, run_path: Path) -> None:
        self.run_path = Path(run_path)
        self._summaries: dict[int, tuple[int, list[RoundSummary]]] = {}
        self._diff = lru_cache(_KEPT)(self._read_diff)
        self._checks = lru_cache(_KEPT)(lambda number, stamp: checks_of(self.run_path, number))

    @cached_property
    def run(self) -> RunDirectory:
        """The run directory, opened once. Raises as `RunDirectory.open`."""
        return RunDirectory.open(self.run_path)

    def rounds(self) -> list[int]:
        """Numbers of the rounds with a committed stage."""
        return [number for number, found in self._read().items() if found]

    def summaries(self) -> list[RoundSummary]:
        """As `summarize`, oldest first. Raises RecordDamaged."""
        return [summary for found in self._read().values() for summary in found]

    def diff(self, round_number: int) -> BankDiff | None:
        """What the round did to the bank; None where it has published none. Raises RecordDamaged."""
        return self._diff(round_number, self._stamps().get(round_number, 0))

    def checks(self, round_number: int) -> list[StageChecks]:
        """What the data checks of the round looked at. Raises RecordDamaged."""
        return self._checks(round_number, self._stamps().get(round_number, 0))

    def _read_diff(self, number: int, stamp: int) -> BankDiff | None:
        try:
            return bank_diff(self.run_path, number)
        except BadInput:
            return None

    def _read(self) -> dict[int, list[RoundSummary]]:
        stamps = self._stamps()
        new = [number for number, stamp in stamps.items() if self._summaries.get(number, (0,))[0] != stamp]
        if new:
            found: dict[int, list[RoundSummary]] = {number: [] for number in new}
            for summary in summarize(self.run_path, new if len(new) <= _MANY else None):
                found.setdefault(summary.round, []).append(summary)
            for number in new:
                self._summaries[number] = (stamps[number], found[number])
        return {number: self._summaries[number][1] for number in sorted(stamps)}

    def _stamps(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for folder, name in (("rounds", _ROUND), (VALIDATIONS, _VERDICT)):
            missing = contextlib.suppress(FileNotFoundError, NotADirectoryError)
            with missing, os.scandir(self.run_path / folder) as entries:
                for each in entries:
                    if (match := name.fullmatch(each.name)) and (folder == "rounds" or int(match[1]) in found):
                        number = int(match[1])
                        found[number] = max(found.get(number, 0), each.stat().st_mtime_ns)
        return found
