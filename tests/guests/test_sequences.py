"""Rows of several sequences, as `tests/paper/test_sequences.py` has them, in the recipes of guests."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from crl.checks import check_tables
from crl.config.load import load_experiment
from crl.errors import DataCheckFailed
from crl.recipes.erl.credit import Internalized, samples_of
from crl.recipes.importance_replay import credit as replay
from crl.recipes.importance_replay.rows import EVICTED, HELD, ReplayDraw, ReplayItem
from crl.records import Episode, Generation, Row, Sample, table_of
from crl.rollout.play import PlayedEpisode
from crl.rounds.recipe import recipe_of
from tests.paper.test_sequences import GAMES, ROOT, ROUND, LossType, all_played, spoken


@pytest.mark.parametrize("loss_type", ["grpo", "token_sum"])
def test_an_internalized_attempt_counts_once(model: Path, loss_type: LossType) -> None:
    """ERL: c r / N for the mean, or the sum, over the tokens of the attempt, whatever sequences they are in."""
    method = load_experiment(
        ROOT / "conf/erl_tiny.yaml",
        {"method.recipe.objective.loss_type": loss_type, "method.recipe.internalize.weight": 0.5},
    ).method
    games = [(game, each) for game, each in zip(GAMES, all_played(model), strict=True) if game.reward > 0]
    learned = [Internalized(each.generations, game.reward) for game, each in games]
    samples = samples_of([], learned, method, round=ROUND)
    total = sum(spoken(game) for game, _ in games)
    assert sum(sum(sample.loss_mask) for sample in samples) == total
    for game, each in games:
        mine = [row for row in samples if row.generation_id in each.episode.generation_ids]
        by_token = 0.5 * game.reward / len(games) / (spoken(game) if loss_type == "grpo" else 1)
        assert [row.weight / total for row in mine] == pytest.approx([by_token] * len(mine))


class CreditStage:
    """What the stage `credit` of importance replay reads and writes."""

    def __init__(self, method: Any, games: Sequence[PlayedEpisode], before: Sequence[ReplayItem] = ()) -> None:
        self.method, self.round = method, ROUND
        self._read = {
            (Episode, "collect"): [each.episode for each in games],
            (Generation, "collect"): [row for each in games for row in each.generations],
            (ReplayItem, "before"): list(before),
        }
        self.written: dict[Any, list[Any]] = {}
        self.metrics: dict[str, float] = {}

    def rows(self, row_type: type[Row], read: str) -> list[Any]:
        return self._read[row_type, read]

    def rows_at(self, row_type: type[Row], number: int, stage: str) -> list[Any]:
        return self._read[row_type, stage]

    def generations_at(self, names: Iterable[tuple[int, str, str]]) -> dict[str, Generation]:
        rows = {row.generation_id: row for row in self._read[Generation, "collect"]}
        return {name: rows[name] for _, _, name in names}

    def seed(self, *words: object) -> int:
        return 7

    def write(self, row_type: type[Row], rows: list[Any]) -> None:
        self.written[row_type] = rows

    def write_metrics(self, metrics: dict[str, float], alarms: object) -> None:
        self.metrics = metrics


def replayed(games: Sequence[PlayedEpisode], loss_type: LossType, *, capacity: int = 100) -> CreditStage:
    method = load_experiment(
        ROOT / "conf/importance_replay_tiny.yaml",
        {"method.recipe.objective.loss_type": loss_type, "method.recipe.weighting": "uniform",
         "method.recipe.buffer": {"capacity": capacity, "batch": 65_536}},
    ).method  # fmt: skip
    recipe_of(method)  # its row types are known by then
    ctx = CreditStage(method, games)
    replay.credit(ctx)  # type: ignore[arg-type]
    return ctx


@pytest.mark.parametrize("loss_type", ["grpo", "token_sum"])
def test_a_batch_of_a_replay_buffer_stands_for_its_episodes(model: Path, loss_type: LossType) -> None:
    """A batch of all that a buffer has gives each of its E episodes the weight 1/E, over all of its tokens."""
    games = all_played(model)
    ctx = replayed(games, loss_type)
    items, samples = ctx.written[ReplayItem], ctx.written[Sample]
    check_tables({ReplayItem: table_of(ReplayItem, items)}, where="here")
    assert [row.generation_id for row in items] == [
        name for each in games for name in dict.fromkeys(turn.generation_id for turn in each.turns)
    ]
    assert {row.trained for row in items if row.episode_id.endswith("m000")} == {5, 6}
    assert ctx.metrics["replay_buffer"] == ctx.metrics["replay_entered"] == len(GAMES)
    assert all(row.probability == pytest.approx(1 / len(GAMES)) for row in ctx.written[ReplayDraw])
    for game, each in zip(GAMES, games, strict=True):
        mine = [row for row in samples if row.generation_id in each.episode.generation_ids]
        expected = 1 / len(GAMES) / (spoken(game) if loss_type == "grpo" else 1)
        for row in mine:
            by_token = row.weight / (sum(row.loss_mask) if loss_type == "grpo" else 1)
            assert by_token == pytest.approx(expected)
        assert len({row.advantage for row in mine}) == 1


def test_episodes_enter_and_leave_a_replay_buffer_as_a_whole(model: Path) -> None:
    games = all_played(model)
    ctx = replayed(games, "grpo", capacity=4)
    items = ctx.written[ReplayItem]
    gone, held = ([row.episode_id for row in items if row.status == status] for status in (EVICTED, HELD))
    assert list(dict.fromkeys(held)) == [each.episode.episode_id for each in games[-4:]]
    assert not set(gone) & set(held) and ctx.metrics["replay_evicted"] == len(GAMES) - 4
    alone = [dataclasses.replace(row, status=HELD) if row is items[0] else row for row in items]
    with pytest.raises(DataCheckFailed, match="held or evicted as a whole"):
        check_tables({ReplayItem: table_of(ReplayItem, alone)}, where="here")
