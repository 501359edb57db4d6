"""What became of each round of a run, as data: success, bank, operations, updates, health, seconds, alarms.

Round 0 comes twice where there was a warm start: the base models, then the models that round 1 starts from. As text
for a terminal: `round_tables.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from crl.errors import CrlError
from crl.report.evaluation import ArmResult, result_of
from crl.report.rates import NONE, Rate
from crl.report.views import reading
from crl.run.directory import RunDirectory

if TYPE_CHECKING:
    import duckdb

R = TypeVar("R")

# No bank is put together here: where a file of one is gone, its round has no figures of it.
_VIEWS = frozenset(
    {
        "bank", "bank_changes", "bank_events", "bank_snapshots", "buffer", "distillations", "episodes",
        "evaluations", "metrics", "operations", "stages", "weights",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cost:
    """What the games of an arm took, in all."""

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
    """What became of one round. A stage that has not run leaves its figures empty."""

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
    """By arm (guided, free, synthetic, with_bank, without_bank, random) and task family."""
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
    arms: tuple[Mapping[str, Any], ...] = ()
    """Rows of the view `success_by_arm`."""
    costs: Mapping[str, Cost] = field(default_factory=dict)
    """By arm: guided, free, synthetic, with_bank, without_bank."""
    evaluations: tuple[ArmResult, ...] = ()
    """Held-out results by task and arm, in order of their names."""
    timings: Mapping[tuple[str, str], Timing] = field(default_factory=dict)
    """By stage and kind of work, as in the view `timings`."""
    broken: tuple[Mapping[str, Any], ...] = ()
    """Rows of the view `broken_games`."""
    clipped: Mapping[str, float] = field(default_factory=dict)
    """Share of the trained tokens whose ratio the objective clipped, by role; a role that was not updated is absent."""
    health: Mapping[str, float] = field(default_factory=dict)
    """Figures of the stage `health` (`crl/rounds/figures.py`); none in round 0."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds per stage, in the order they ran."""
    alarms: tuple[str, ...] = ()
    """Metrics outside their bounds: `stage: name value, what is wrong`."""


def random_policy(summaries: Sequence[RoundSummary]) -> Rate:
    """Held-out success of the random policy; of no episodes where it was not measured."""
    return next((each.random for each in summaries if each.random.episodes), NONE)


def summarize(run_path: Path, rounds: Sequence[int] | None = None) -> list[RoundSummary]:
    """One entry per round that has a committed stage, oldest first; of some rounds only where `rounds` names them."""
    with reading(run_path, rounds, views=_VIEWS) as connection:
        numbers = [row[0] for row in connection.execute("SELECT round FROM rounds ORDER BY round").fetchall()]
        figures, recipe_of_round = _FiguresByRound(connection), _recipes(run_path)
        return [
            replace(summary, recipe=recipe_of_round(number))
            for number in numbers
            for summary in figures.of_round(number)
        ]


def _recipes(run_path: Path) -> Callable[[int], str]:
    """The kind of recipe of each round: of a fork's first rounds that of the run that made them."""
    try:
        run = RunDirectory.open(run_path)
        ancestors = run.lineage.ancestors
    except CrlError:  # a run whose method cannot be read has figures all the same
        return lambda number: ""
    made = [(each.round, str(each.method["recipe"]["kind"])) for each in ancestors]
    return lambda number: next((kind for last, kind in made if number <= last), run.method.recipe.kind)


class _FiguresByRound:
    """Each figure of all rounds in one query."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        def fetch(sql: str) -> list[tuple[Any, ...]]:
            return connection.execute(sql).fetchall()

        def nested(sql: str, value: Callable[[Any], R]) -> dict[Any, dict[str, R]]:
            """What a query gives for a round and a name, by both."""
            found: dict[Any, dict[str, R]] = {}
            for number, name, each in fetch(sql):
                found.setdefault(number, {})[str(name)] = value(each)
            return found

        self._success: dict[tuple[Any, Any, Any], Rate] = {}
        self._arms: dict[Any, list[dict[str, Any]]] = {}
        self._costs: dict[Any, dict[str, Cost]] = {}
        for row in connection.sql("SELECT * FROM success_by_arm").to_arrow_table().to_pylist():
            number, stage, arm, games = row["round"], row["stage"], row["arm"], row["games"]
            self._arms.setdefault(number, []).append(row)
            self._success[number, stage, arm] = Rate(row["won"], games, row["broken"])
            # Further attempts (ERL) that go by the old instructions are no games of the free arm.
            if stage in ("collect", "evaluate") and arm != "random":
                took = (round(games * row[name]) for name in ("actions", "tokens_read", "tokens_sampled"))
                self._costs.setdefault(number, {})[arm] = Cost(games, *took)
        self._evaluations: dict[tuple[Any, Any], list[ArmResult]] = {}
        for number, stage, task, arm, won, games, broken, score, actions, read, written, invalid, guided in fetch(
            "SELECT round, stage, family, arm, count_if(success), count(*), count_if(stop_reason = 'error'), "
            "avg(reward), avg(turns), avg(tokens_read), avg(tokens_sampled), "
            "coalesce(sum(invalid_actions) / nullif(sum(turns), 0), 0), count_if(guided) "
            "FROM evaluations GROUP BY round, stage, family, arm ORDER BY round, stage, family, arm"
        ):
            result = result_of(
                str(task), str(arm), Rate(_whole(won), _whole(games), _whole(broken)), score=float(score),
                actions=float(actions), tokens_read=float(read), tokens_written=float(written),
                invalid_share=float(invalid), guided=_whole(guided),
            )  # fmt: skip
            self._evaluations.setdefault((number, stage), []).append(result)
        self._tasks: dict[Any, dict[str, dict[str, Rate]]] = {}
        for number, arm, family, *counts in fetch(
            "SELECT round, arm, family, won, games, broken FROM success_by_task WHERE stage <> 'evaluate_base' "
            "ORDER BY ALL"
        ):
            self._tasks.setdefault(number, {}).setdefault(str(arm), {})[str(family)] = Rate(*map(_whole, counts))
        self._broken: dict[Any, list[dict[str, Any]]] = {}
        for row in connection.sql("SELECT * FROM broken_games ORDER BY ALL").to_arrow_table().to_pylist():
            self._broken.setdefault(row["round"], []).append(row)
        self._timings: dict[Any, dict[tuple[str, str], Timing]] = {}
        for number, stage, work, batches, items, seconds in fetch(
            "SELECT round, stage, work, batches, items, seconds FROM timings ORDER BY ALL"
        ):
            timing = Timing(_whole(batches), _whole(items), float(seconds))
            self._timings.setdefault(number, {})[str(stage), str(work)] = timing
        self._bank: dict[Any, Any] = dict(fetch("SELECT round, entries FROM bank_snapshots"))
        self._moved: dict[Any, dict[str, dict[int, int]]] = {}
        for number, how, created, count in fetch(
            "SELECT round, CASE WHEN removed THEN 'left' WHEN round = 0 OR created_round = round THEN 'arrived' "
            "ELSE 'rewritten' END, created_round, count(*) "
            "FROM bank_changes GROUP BY ALL ORDER BY ALL"
        ):
            self._moved.setdefault(number, {}).setdefault(str(how), {})[_whole(created)] = _whole(count)
        # A stage that kept an empty buffer has one of 0, not an unknown one: so stages first, rows second.
        self._buffer = {
            row[0]: tuple(map(_whole, row[1:]))
            for row in fetch(
                # With FILTER, not count_if: that is NULL, and not 0, where every row is NULL.
                "SELECT stages.round, count(*) FILTER (buffer.status = 'waiting' AND buffer.uses > 0), "
                "count(*) FILTER (buffer.status = 'selected'), count(*) FILTER (buffer.status = 'dropped') FROM stages "
                "LEFT JOIN buffer USING (round, stage) WHERE stages.stage = 'credit' GROUP BY stages.round"
            )
        }
        self._operations = nested(
            "SELECT round, kind, count(*) FROM operations WHERE stage IN ('distill', 'merge') "
            "GROUP BY ALL ORDER BY ALL",
            _whole,
        )
        self._outputs = {
            row[0]: (_whole(row[1]), _whole(row[2]))
            for row in fetch(
                "SELECT round, count(*), count_if(verdict = 'malformed') FROM distillations "
                "WHERE stage IN ('distill', 'merge') GROUP BY round"
            )
        }
        self._reasons = nested(
            "SELECT round, reason_code, count(*) AS count FROM distillations WHERE stage IN ('distill', 'merge') "
            "AND verdict = 'malformed' GROUP BY ALL ORDER BY count DESC, reason_code",
            _whole,
        )
        self._updates = nested(
            "SELECT round, role, max(updates) FROM weights WHERE role <> 'embedder' GROUP BY ALL ORDER BY ALL", _whole
        )
        self._changes = nested("SELECT round, kind, count(*) FROM bank_events GROUP BY ALL ORDER BY ALL", _whole)
        self._clipped = nested(
            "SELECT round, stage[8:] AS role, sum(value) FROM metrics WHERE name IN ('clipped_low', 'clipped_high') "
            "AND starts_with(stage, 'update_') GROUP BY ALL ORDER BY ALL",
            float,
        )
        self._health = nested("SELECT round, name, value FROM metrics WHERE stage = 'health' ORDER BY ALL", float)
        self._seconds = nested(
            "SELECT round, stage, seconds FROM stages WHERE seconds IS NOT NULL ORDER BY round, sequence, stage", float
        )
        self._alarms: dict[Any, list[str]] = {}
        for number, stage, name, value, alarm in fetch(
            "SELECT round, stage, name, value, alarm FROM metrics WHERE alarm IS NOT NULL ORDER BY round, stage, name"
        ):
            self._alarms.setdefault(number, []).append(f"{stage}: {name} {value:.3g}, {alarm}")

    def of_round(self, number: int) -> list[RoundSummary]:
        moved = self._moved.get(number, {})
        waiting, trained, dropped = self._buffer.get(number, (None, 0, 0))
        summary = RoundSummary(
            round=number,
            label=str(number),
            guided=self._success.get((number, "collect", "guided"), NONE),
            free=self._success.get((number, "collect", "free"), NONE),
            synthetic=self._success.get((number, "collect", "synthetic"), NONE),
            with_bank=self._success.get((number, "evaluate", "with_bank"), NONE),
            without_bank=self._success.get((number, "evaluate", "without_bank"), NONE),
            random=self._success.get((number, "evaluate", "random"), NONE),
            tasks=self._tasks.get(number, {}),
            bank=_optional(self._bank.get(number)),
            operations=self._operations.get(number, {}),
            outputs=self._outputs.get(number, (0, 0))[0],
            malformed=self._outputs.get(number, (0, 0))[1],
            buffer=waiting,
            buffer_trained=trained,
            buffer_dropped=dropped,
            arrived=moved.get("arrived", {}),
            left=moved.get("left", {}),
            rewritten=sum(moved.get("rewritten", {}).values()),
            malformed_by=self._reasons.get(number, {}),
            updates=self._updates.get(number, {}),
            changes=self._changes.get(number, {}),
            arms=tuple(self._arms.get(number, ())),
            costs=self._costs.get(number, {}),
            evaluations=tuple(self._evaluations.get((number, "evaluate"), ())),
            timings=self._timings.get(number, {}),
            broken=tuple(self._broken.get(number, ())),
            clipped=self._clipped.get(number, {}),
            health=self._health.get(number, {}),
            seconds=self._seconds.get(number, {}),
            alarms=tuple(self._alarms.get(number, ())),
        )
        before = RoundSummary(
            round=number,
            label=f"{number} base",
            with_bank=self._success.get((number, "evaluate_base", "with_bank"), NONE),
            without_bank=self._success.get((number, "evaluate_base", "without_bank"), NONE),
            evaluations=tuple(self._evaluations.get((number, "evaluate_base"), ())),
        )
        measured = before.with_bank.episodes or before.without_bank.episodes
        return [before, summary] if measured else [summary]


def _whole(value: object) -> int:
    assert isinstance(value, int | float)
    return int(value)


def _optional(value: object) -> int | None:
    return None if value is None else _whole(value)
