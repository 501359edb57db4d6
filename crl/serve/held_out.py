"""The held-out games of an exported agent, played again from its folder and compared with the episodes in it.

They are played by the stage that evaluates a round; what it reads in a run comes from the folder here. On the same
processor the episodes are equal. Elsewhere the last digits differ, a game may go another way, and what has to hold is
the figure: success lies in the interval of the stored episodes. Games that need a second model are left out: a judge's,
and those whose actor asks the extractor or judges experiences.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from crl.bank.segments import text_digest
from crl.checks.outside import require_sound
from crl.config.roles import TransformersEngine
from crl.credit.uses import chosen_by_episode
from crl.errors import BadInput, DataCheckFailed
from crl.limits import read_limited
from crl.policies.machine import processor
from crl.protocols import Policy
from crl.recipes.complementary.plan import retrieve_all
from crl.records import (
    BankEntry,
    BankSnapshot,
    Evaluation,
    OutsideRows,
    Row,
    Task,
    Weights,
    rows_of,
    schema_of,
    table_of,
    with_added,
)
from crl.report.success import Average, averages, condition_results
from crl.rounds.context import BANK, StageContext
from crl.rounds.evaluate import Choice, Evaluated, Guided, chosen_method, evaluate_part, play_again
from crl.rounds.recipe import recipe_of
from crl.rounds.stage import Recipe, Stage
from crl.rounds.waves import slots_of
from crl.run.directory import RunDirectory
from crl.run.files import parsed_parquet
from crl.run.writer import conforming, parquet_bytes
from crl.serve.folder import EPISODES, OfFolder

_AGAIN = "download or copy the folder once more, or export the agent again: `crl export RUN --to FOLDER`"


@dataclasses.dataclass(frozen=True)
class SuccessAgain:
    """Success in one condition."""

    condition: str
    success: Average
    """Of the games played now."""
    stored: Average
    """Of the same games as the folder has them."""

    @property
    def inside(self) -> bool:
        """Whether it lies in the interval of the stored one."""
        return self.stored.low <= self.success.mean <= self.stored.high


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Episodes that were played again beside the stored ones of the same games."""

    equal: int
    """Episodes that are as they are stored, in every column."""
    episodes: int
    """Episodes that are stored of these games."""
    digest: str
    """Of those played now (:func:`digest_of`)."""
    stored_digest: str
    """Of the stored ones of the same games."""
    successes: tuple[SuccessAgain, ...]
    computed: str
    """What computed them now: processor, and version of torch."""
    stored_computed: str | None
    """What computed the stored ones; None where nobody noted it."""

    @property
    def same(self) -> bool:
        """Whether every episode is equal."""
        return self.digest == self.stored_digest

    @property
    def expects_equal(self) -> bool:
        """Whether both were computed by the same kind of processor and version of torch."""
        return self.computed == self.stored_computed

    @property
    def holds(self) -> bool:
        """Whether it came out as stored: equal, or on another processor with its figures in their intervals."""
        return self.same or (not self.expects_equal and all(each.inside for each in self.successes))

    def lines(self) -> list[str]:
        """The result in words."""
        if self.same:
            return [f"{self.episodes} episodes are equal to those in the folder, digest {self.digest}"]
        found = [
            f"{self.equal} of {self.episodes} episodes are equal to those in the folder",
            f"  played now: digest {self.digest}, computed by {self.computed}",
            f"  in the folder: digest {self.stored_digest}, computed by {self.stored_computed or 'an unknown machine'}",
        ]
        for each in self.successes:
            place = "inside" if each.inside else "outside"
            found.append(
                f"  success {each.condition.replace('_', ' ')}: {each.success.percent}, {place} the stored "
                f"{each.stored.words}"
            )
        if self.expects_equal:
            return [*found, "the same processor computed both, so the episodes should be equal"]
        return [*found, f"the figures of the folder {'hold' if self.holds else 'do not hold'} on this processor"]

    def data(self) -> dict[str, Any]:
        """The same as plain data."""
        return {**dataclasses.asdict(self), "same": self.same, "holds": self.holds}


def digest_of(rows: Sequence[Evaluation]) -> str:
    """SHA-256 of episodes, in the order of their ids: of their values, however a file writes them."""
    ordered = sorted((dataclasses.asdict(row) for row in rows), key=lambda row: row["evaluation_id"])
    lines = (json.dumps(row, sort_keys=True, ensure_ascii=True) for row in ordered)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def evaluate_folder(agent: OfFolder, choice: Choice | None = None) -> tuple[Evaluated, Comparison | None]:
    """Play the held-out games of an exported agent, or some of them; beside the episodes, how they compare with those
    in the folder (None: it has none of these games).

    Raises BadInput where its weights are not what was written, where its games need more than is in the folder, where
    its base model cannot be had, and for a choice that cannot be.
    """
    choice = choice or Choice()
    chosen_method(agent.method, choice)  # refused before anything is loaded
    _check_playable(agent)
    agent.check_weights()
    stored = stored_episodes(agent)
    recipe = _recipe(agent)
    with ExitStack() as stack:
        services: Any = agent.services(stack)  # nothing is trained, so no trainer is asked for
        evaluated, _ = play_again(_Rows(agent), agent.method, recipe, agent.round, services, choice=choice)
    played = {row.evaluation_id for row in evaluated.rows}
    known = [row for row in stored if row.evaluation_id in played]
    if choice == Choice() and len(known) < len(stored):
        lacking = next(row.evaluation_id for row in stored if row.evaluation_id not in played)
        raise _damaged(agent.path / EPISODES, f"it has {lacking}, and the folder has no such game", "its games alone")
    return evaluated, _compared(agent, evaluated.rows, known)


def stored_episodes(agent: OfFolder) -> list[Evaluation]:
    """The held-out episodes in a folder; none where it has none. Raises BadInput for others than were written."""
    if (told := agent.evaluation) is None:
        return []
    path = agent.path / EPISODES
    try:
        content = read_limited(path)
        # Counted before it is read: a small file may hold one row a billion times.
        if (count := pq.ParquetFile(pa.BufferReader(content)).metadata.num_rows) != told.episodes:
            raise _damaged(path, f"{count} episodes", f"{told.episodes}")
        table = conforming(Evaluation, with_added(Evaluation, parsed_parquet(content)), str(path))
    except (OSError, pa.ArrowException, KeyError, DataCheckFailed) as error:
        raise _damaged(path, str(error).splitlines()[0], "a table of held-out episodes") from None
    require_sound(OutsideRows(Evaluation, table, str(path), _AGAIN))
    rows = rows_of(Evaluation, table)
    if (digest := digest_of(rows)) != told.digest:
        raise _damaged(path, f"episodes of digest {digest}", told.digest)
    return rows


def _damaged(path: Path, found: str, expected: str) -> BadInput:
    return BadInput(f"{EPISODES} of the exported agent: {found}", expected=expected, where=str(path), next_step=_AGAIN)


def _check_playable(agent: OfFolder) -> None:
    """Raise BadInput where a folder has not all that its held-out games need."""
    method = agent.method
    if method.owner("actor") != method.owner(agent.role):
        raise BadInput(
            f"{agent.path} has the weights of role {agent.role}, and the actor plays",
            expected="an exported actor",
            next_step="crl export RUN --to FOLDER writes it",
        )
    needs = {
        "a judge scores its games": bool(method.judged),
        "its actor asks the extractor while it plays": method.rollout.search_and_ask is not None,
        "its actor judges experiences by its record before it plays": (
            getattr(method.recipe, "actor_critic", None) is not None
        ),
    }
    if found := [what for what, needed in needs.items() if needed]:
        raise BadInput(
            f"the held-out games of {agent.path} need more than is in the folder: {', '.join(found)}",
            expected="an agent that plays alone",
            next_step="evaluate the run itself: `crl evaluate RUN`",
        )


def _recipe(agent: OfFolder) -> Recipe:
    """The recipe of a folder, whose stage `evaluate` is guided by the folder's bank."""

    def guided(stage: Stage) -> Stage:
        if stage.name != "evaluate" or all(read.name != BANK for read in stage.reads):
            return stage
        return dataclasses.replace(stage, run_part=partial(evaluate_part, guides=_guides(agent)))

    recipe = recipe_of(agent.method)
    return dataclasses.replace(
        recipe, preparation=tuple(map(guided, recipe.preparation)), stages=tuple(map(guided, recipe.stages))
    )


def _guides(agent: OfFolder) -> Callable[[StageContext, Sequence[Task], Policy, str], Guided]:
    """Held-out tasks with the experiences that guide them."""
    retriever = agent.retriever()
    texts = {text_digest(entry.text): entry.text for entry in agent.entries()}

    def guided(ctx: StageContext, tasks: Sequence[Task], policy: Policy, weights_digest: str) -> Guided:
        assert retriever is not None, "no condition has a bank that is empty"
        return Guided(slots_of(tasks, chosen_by_episode(retrieve_all(ctx, retriever, tasks, advance=False)), texts))

    return guided


class _Rows:
    """What the stage reads in a run: the rows of a folder, whichever round and stage they are asked of."""

    def __init__(self, agent: OfFolder) -> None:
        self._agent = agent

    @property
    def path(self) -> Path:
        """The folder: there are no stages in it."""
        return self._agent.path

    def read(self, round_number: int, stage: str, row_type: type[Row]) -> pa.Table:
        """Weights of the actor and its bank; no rows of another type."""
        if row_type is Weights:
            return table_of(Weights, [self._agent.weights("actor")])
        if row_type is BankEntry:
            return self._agent.snapshot().table
        if row_type is BankSnapshot:
            bank, number = self._agent.snapshot(), self._agent.round
            summary = BankSnapshot(
                round=number, entries=len(bank), changed=0, removed=0, base_round=number, changes_since_base=0,
                digest=bank.digest(),
            )  # fmt: skip
            return table_of(BankSnapshot, [summary])
        return schema_of(row_type).empty_table()


def _compared(agent: OfFolder, rows: Sequence[Evaluation], known: Sequence[Evaluation]) -> Comparison | None:
    """`known`: the stored episodes of games that were played."""
    if not known or (told := agent.evaluation) is None:
        return None
    played = {row.evaluation_id: row for row in rows}
    mine = [played[row.evaluation_id] for row in known]
    now = {each.condition: each.success for each in averages(condition_results(mine))}
    return Comparison(
        equal=sum(row == played[row.evaluation_id] for row in known),
        episodes=len(known),
        digest=digest_of(mine),
        stored_digest=digest_of(known),
        successes=tuple(
            SuccessAgain(each.condition, now[each.condition], each.success)
            for each in averages(condition_results(known))
        ),
        computed=f"{processor()}, torch {metadata.version('torch')}",
        stored_computed=None if told.processor is None else f"{told.processor}, torch {told.torch}",
    )


def write_episodes(run: RunDirectory, number: int, path: Path) -> dict[str, Any] | None:
    """Write the held-out episodes of a round to a file; what `experience.json` says of them. None where the round was
    not evaluated."""
    if not run.is_complete(number, "evaluate"):
        return None
    table, provenance = run.read(number, "evaluate", Evaluation), run.manifest(number, "evaluate").provenance
    path.write_bytes(parquet_bytes(Evaluation, with_added(Evaluation, table)))
    computed, engine = provenance.get("processor"), run.method_of(number, "evaluate").role("actor").engine
    if computed is not None and not isinstance(engine, TransformersEngine):
        computed += f" with {engine.kind}"  # whoever plays them again has transformers
    return {
        "episodes": table.num_rows,
        "digest": digest_of(rows_of(Evaluation, table)),
        "processor": computed,
        "torch": provenance.get("versions", {}).get("torch"),
    }
