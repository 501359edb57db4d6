"""What the record of one run says, as far as a study asks: success at every evaluation, episodes, extractor health.

Only tables of the record are read, each held against its manifest. Nothing is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pyarrow.compute as pc
from pydantic import BaseModel

from crl.lab.study.change import RunChange, read_change
from crl.protocols import StopReason
from crl.records import SYNTHETIC, Distillation, Episode, Evaluation, Generation, Metric, Row, Weights, rows_of
from crl.report.success import Rate
from crl.rounds.evaluate import WITH_BANK, WITHOUT_BANK
from crl.rounds.provenance import TIMINGS
from crl.rounds.recipe import recipe_in
from crl.run.directory import RunDirectory

EVALUATE, COLLECT, HEALTH, INITIALIZE = "evaluate", "collect", "health", "initialize"
"""Stages that tables are read of."""
EXPLORE, REFLECTIONS = "explore", "reflections"
"""A stage of DreamGym and a table of ERL: these recipes may not be there, and are imported for their own runs only."""
NOT_SAMPLED = "fit"
"""Kind of token records that a program wrote: what DreamGym's model is fitted to."""
EXPERIENCES_TRUE, COVERAGE = "experiences_true", "families_with_true_experience"
"""Names of metrics of stage `health`, where the environment knows the truth."""

_COMPUTE = ("complementary-rl", "torch", "transformers")
"""Packages of which another version may compute other numbers."""


class GameCost(BaseModel, frozen=True):
    """What a held-out game took, mean over those of one arm after one round."""

    actions: float
    """Turns."""
    tokens_read: float
    """Tokens the actor read, for its verdict on the experience too."""
    tokens_sampled: float
    seconds: float | None = None
    """Clock time, the games of a wave counted together; None where nobody took it."""


class RunMetrics(BaseModel, frozen=True):
    """One run of a study."""

    with_bank: dict[int, Rate]
    """Held-out success by round. Where the bank is still empty there is nothing to show: it is that without the bank.
    Empty for a run that never had a bank."""
    without_bank: dict[int, Rate]
    episodes: dict[int, int]
    """Training episodes up to and including each round, those of warm-up rounds too."""
    tokens: dict[int, int] = {}
    """Tokens that any role sampled in training, likewise. Neither those that left no choice count, nor random play."""
    real_steps: dict[int, int] = {}
    """Steps of the real environment in training, likewise."""
    seconds: dict[int, int] = {}
    """Clock time of training on the run's machine, likewise: for runs of equal machines that had as much else to do."""
    outputs: int
    """Extractor outputs of all rounds; of ERL its reflections."""
    malformed: int
    returned: int | None
    """Outputs that say `return`: nothing is to be learned. None: no output can say so."""
    experiences_true: float | None
    """Share of the bank that is true after the last round; None where nothing knows the truth."""
    coverage: float | None
    """Share of task families with a true experience after the last round."""
    starts: dict[str, str] = {}
    """Digest of the weights that each role began with, by the model's name: arms are compared from equal starts."""
    costs_with_bank: dict[int, GameCost] = {}
    """By evaluated round; none before the first bank."""
    costs_without_bank: dict[int, GameCost] = {}
    retrieval_seconds: float | None = None
    """Mean over the queries of all rounds; None where nothing was searched."""
    answer_seconds: float | None = None
    """Mean over the answered questions of all rounds; None where nobody asked."""
    broken: int = 0
    """Held-out games of all rounds that broke: they count as lost."""
    made_with: dict[str, list[str]] = {}
    """Versions of the packages that its evaluations were computed with, and whether bfloat16 was computed as such or
    replaced by float32, where a model is to compute in it."""
    change: RunChange | None = None
    """Where families change in the middle of the run."""
    alarms: list[str]
    """In what way the run had collapsed in its last round; other alarms of its health are not here."""

    @property
    def training_episodes(self) -> int:
        """Those of all rounds."""
        return max(self.episodes.values(), default=0)

    def success(self, *, bank: bool) -> dict[int, float]:
        """Held-out success by round."""
        return {
            number: rate.successes / rate.episodes
            for number, rate in (self.with_bank if bank else self.without_bank).items()
        }


def success_of(run: RunDirectory, round_number: int) -> dict[str, str]:
    """Held-out success of a round in words, by condition; empty where it was not evaluated."""
    return {arm: f"{rate} {rate.percent}" for arm, rate in _rates(run, round_number).items()}


def read_run(path: Path, rounds: int) -> RunMetrics:
    """The metrics of a run up to round `rounds`. Raises RecordDamaged, RunDirectoryUnusable."""
    run = RunDirectory.open(path)
    numbers = [number for number in run.rounds() if number <= rounds]
    rates = {number: found for number in numbers if (found := _rates(run, number))}
    without = {number: found[WITHOUT_BANK] for number, found in rates.items()}
    has_bank = any(WITH_BANK in found for found in rates.values())
    costs = {number: _costs(run, number) for number in rates}
    outputs, malformed, returned = _outputs(run, numbers)
    health = _health(run, numbers[-1]) if numbers else {}
    return RunMetrics(
        with_bank={number: found.get(WITH_BANK, without[number]) for number, found in rates.items()}
        if has_bank
        else {},
        without_bank=without,
        episodes=_total(run, numbers, lambda number, stage: _rows(run, number, stage, Episode)),
        tokens=_total(run, numbers, partial(_tokens, run)),
        real_steps=_total(run, numbers, partial(_real_steps, run)),
        seconds=_total(run, numbers, lambda number, stage: run.manifest(number, stage).seconds),
        outputs=outputs,
        malformed=malformed,
        returned=returned,
        experiences_true=_value(health, EXPERIENCES_TRUE),
        coverage=_value(health, COVERAGE),
        starts=_starts(run),
        costs_with_bank={number: found[WITH_BANK] for number, found in costs.items() if WITH_BANK in found},
        costs_without_bank={number: found[WITHOUT_BANK] for number, found in costs.items() if WITHOUT_BANK in found},
        retrieval_seconds=_latency(run, numbers, "retrieval"),
        answer_seconds=_latency(run, numbers, "answers"),
        broken=sum(rate.broken for found in rates.values() for rate in found.values()),
        made_with=_made_with(run, list(rates)),
        change=read_change(run, list(rates)),
        alarms=collapse_alarms(health),
    )


def collapse_alarms(health: Mapping[str, Metric]) -> list[str]:
    """The alarm of a round's metric `collapsed`, if it has one."""
    alarm = health["collapsed"].alarm if "collapsed" in health else None
    return [] if alarm is None else [alarm]


def _rates(run: RunDirectory, number: int) -> dict[str, Rate]:
    if not run.is_complete(number, EVALUATE):
        return {}
    table = run.read(number, EVALUATE, Evaluation)
    table = table.append_column("broke", pc.equal(table["stop_reason"], StopReason.error.value))
    counted = (
        table.group_by("condition").aggregate([("success", "sum"), ("success", "count"), ("broke", "sum")]).to_pylist()
    )
    return {row["condition"]: Rate(row["success_sum"], row["success_count"], row["broke_sum"]) for row in counted}


def _costs(run: RunDirectory, number: int) -> dict[str, GameCost]:
    """What a game took after a round, by condition."""
    table = run.read(number, EVALUATE, Evaluation)
    taken = _timings(run, number, EVALUATE)
    found = {}
    for condition in pc.unique(table["condition"]).to_pylist():
        mine = table.filter(pc.equal(table["condition"], condition))
        timing = taken.get(f"play {condition}")
        found[condition] = GameCost(
            actions=pc.mean(mine["turns"]).as_py(),
            tokens_read=pc.mean(mine["tokens_read"]).as_py(),
            tokens_sampled=pc.mean(mine["tokens_sampled"]).as_py(),
            seconds=None if timing is None else timing["seconds"] / timing["items"],
        )
    return found


def _timings(run: RunDirectory, number: int, stage: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = run.manifest(number, stage).provenance.get(TIMINGS, {})
    return found


def _made_with(run: RunDirectory, numbers: list[int]) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for number in numbers:
        provenance = run.manifest(number, EVALUATE).provenance
        for package in _COMPUTE:
            if package in provenance.get("versions", {}):
                found.setdefault(package, set()).add(provenance["versions"][package])
        if "bfloat16" in provenance and any(role.dtype == "bfloat16" for role in run.method.roles.values()):
            found.setdefault("bfloat16", set()).add("computed" if provenance["bfloat16"] else "replaced by float32")
    return {name: sorted(versions) for name, versions in found.items()}


def _latency(run: RunDirectory, numbers: list[int], work: str) -> float | None:
    """Mean seconds of one item of a kind of work, wherever and whenever it was done."""
    noted = [_timings(run, number, stage).get(work) for number in numbers for stage in run.complete_stages(number)]
    found = [timing for timing in noted if timing is not None]
    items = sum(timing["items"] for timing in found)
    return sum(timing["seconds"] for timing in found) / items if items else None


def _starts(run: RunDirectory) -> dict[str, str]:
    if not run.is_complete(0, INITIALIZE):
        return {}
    return {row.source: row.base_digest for row in rows_of(Weights, run.read(0, INITIALIZE, Weights))}


def _total(run: RunDirectory, numbers: list[int], count: Callable[[int, str], float]) -> dict[int, int]:
    """Something that stages used in training, up to and including each round: `count` says how much a stage did.

    Whatever stage plays: attempts after the first ones (ERL) are episodes too.
    """
    total, found = 0.0, {}
    for number in numbers:
        if number > 0 and run.is_complete(number, COLLECT):
            stages = [stage for stage in run.complete_stages(number) if not stage.startswith(EVALUATE)]
            total += sum(count(number, stage) for stage in stages)
        found[number] = round(total)
    return found


def _rows(run: RunDirectory, number: int, stage: str, row_type: type[Row]) -> int:
    return run.manifest(number, stage).rows().get(row_type.table, 0)


def _tokens(run: RunDirectory, number: int, stage: str) -> int:
    if _scripted(run, number, stage) or not _rows(run, number, stage, Generation):
        return 0
    table = run.read(number, stage, Generation)
    sampled = table.filter(pc.not_equal(table["kind"], NOT_SAMPLED))
    drawn: int | None = pc.sum(pc.list_flatten(sampled["loss_mask"])).as_py()
    return drawn or 0


def _scripted(run: RunDirectory, number: int, stage: str) -> bool:
    """Whether a stage of DreamGym played at random: recorded in the words of an actor, and nobody sampled it."""
    if stage != EXPLORE:
        return False
    from crl.recipes.dreamgym.explore import explorer

    return explorer(recipe_in(run), run.method_of(number, stage), number) == "random"


def _real_steps(run: RunDirectory, number: int, stage: str) -> int:
    if not _rows(run, number, stage, Episode):
        return 0
    played = run.read(number, stage, Episode)
    turns: int | None = pc.sum(played.filter(pc.not_equal(played["stream"], SYNTHETIC))["turns"]).as_py()
    return turns or 0


def _outputs(run: RunDirectory, numbers: list[int]) -> tuple[int, int, int | None]:
    """How many outputs there are, how many of them are malformed, and how many say `return`.

    A reflection (ERL) says nothing of the kind: its row of stage `distill` has that verdict where the attempt that it
    guided failed. Without a memory it has no such row.
    """
    verdicts, reflections = Counter[str](), Counter[str]()
    for number in numbers:
        for stage in run.complete_stages(number) if number > 0 else []:
            if REFLECTIONS in run.manifest(number, stage).rows():
                reflections.update(_reasons(run, number, stage))
            elif stage in ("distill", "merge"):
                verdicts.update(run.read(number, stage, Distillation)["verdict"].to_pylist())
    if reflections:
        return reflections.total(), reflections.total() - reflections["ok"], None
    return verdicts.total(), verdicts["malformed"], verdicts["return"]


def _reasons(run: RunDirectory, number: int, stage: str) -> list[str]:
    """The reason codes of a stage's reflections."""
    from crl.recipes.erl.rows import Reflection

    found: list[str] = run.read(number, stage, Reflection)["reason_code"].to_pylist()
    return found


def _health(run: RunDirectory, number: int) -> dict[str, Metric]:
    if not run.is_complete(number, HEALTH):
        return {}
    return {row.name: row for row in rows_of(Metric, run.read(number, HEALTH, Metric))}


def _value(health: dict[str, Metric], name: str) -> float | None:
    return health[name].value if name in health else None
