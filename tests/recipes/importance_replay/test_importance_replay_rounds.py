"""Rounds of importance-weighted replay: buffer, draws, probes, labels, the network, and what reads what."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from crl.audit.audit import problems_of
from crl.audit.verify import record_of
from crl.config.load import load_experiment
from crl.errors import BadInput
from crl.policies.embedders import LexicalEmbedder
from crl.recipes.importance_replay.config import ImportanceReplayConfig
from crl.recipes.importance_replay.report import SECTION, replay_rows
from crl.recipes.importance_replay.rows import (
    ExtractorTensor,
    Improvement,
    ProbePair,
    ReplayDraw,
    ReplayEmbedding,
    ReplayItem,
)
from crl.records import Episode, Evaluation, Generation, Metric, Sample, Task, Turn, Weights
from crl.report.summary import summarize
from crl.rounds.recipe import recipe_of
from crl.run.directory import RunDirectory
from tests.marks import sampled
from tests.recipes.importance_replay.replay_played import IMPROVED, ROOT, TIE, WORSE, by_id, experiment, played
from tests.tiny_run import cut_back
from tests.unit.recipes.played import Played, Trainer

ROUNDS = 4
CAPACITY = 24
NUMBERS = range(1, ROUNDS + 1)
WINDOWED = {"method__recipe__extractor__window": 3}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return played(tmp_path_factory.mktemp("replay"), ROUNDS, **WINDOWED)


def metrics(run: Played, number: int, stage: str = "health") -> dict[str, float]:
    return {row.name: row.value for row in run.rows(Metric, stage, number)}


def advantages(run: Played, number: int) -> dict[str, float]:
    """Advantage of every episode of a round by its id, by hand."""
    groups: dict[tuple[str, int], list[Episode]] = {}
    for row in run.rows(Episode, "collect", number):
        groups.setdefault((row.family, row.group), []).append(row)
    found = {}
    for members in groups.values():
        mean = sum(row.reward for row in members) / len(members)
        deviation = math.sqrt(sum((row.reward - mean) ** 2 for row in members) / len(members))
        found |= {row.episode_id: (row.reward - mean) / deviation if deviation else 0.0 for row in members}
    return found


@pytest.mark.slow
def test_a_round_measures_around_its_update(run: Played) -> None:
    names = [stage.name for stage in run.recipe.stages_of(run.method, 1)]
    assert names == [
        "plan", "collect", "credit", "probe_before", "update_actor", "probe_after", "measure", "health", "evaluate",
    ]  # fmt: skip
    assert run.recipe.trains == {"actor"} and not run.recipe.has_bank


def test_what_carries_an_advantage_enters_and_the_oldest_leave(run: Played) -> None:
    held: list[str] = []
    for number in NUMBERS:
        carried = advantages(run, number)
        held += [name for name, value in carried.items() if value]
        held, gone = held[-CAPACITY:], held[:-CAPACITY]
        buffer = run.rows(ReplayItem, "credit", number)
        assert [row.episode_id for row in buffer if row.status == "held"] == held
        assert [row.episode_id for row in buffer if row.status == "evicted"] == gone
        new = [row for row in buffer if row.generation_round == number]
        assert [row.advantage for row in new] == pytest.approx([value for value in carried.values() if value])
        said = metrics(run, number)
        assert (said["replay_buffer"], said["replay_evicted"], said["replay_entered"]) == (
            len(held),
            len(gone),
            len(new),
        )
        assert said["replay_without_advantage"] == sum(not value for value in carried.values())
    assert gone, "in the last round some had to go"


def test_a_sample_is_the_token_record_of_its_round_with_its_probabilities_and_advantage(run: Played) -> None:
    older = 0
    for number in NUMBERS:
        buffer = by_id(run.rows(ReplayItem, "credit", number), "generation_id")
        samples, draws = run.rows(Sample, "credit", number), run.rows(ReplayDraw, "credit", number)
        held = sum(item.status == "held" for item in buffer.values())
        assert len({row.generation_id for row in draws}) == len(draws) == len(samples) == min(16, held)
        for sample, row in zip(samples, draws, strict=True):
            item = buffer[sample.generation_id]
            [record] = [
                each
                for each in run.rows(Generation, "collect", item.generation_round)
                if each.generation_id == sample.generation_id
            ]
            assert (sample.token_ids, sample.loss_mask, sample.logprobs) == (
                record.token_ids, record.loss_mask, record.logprobs,
            )  # fmt: skip
            assert sample.source == f"{item.generation_round:04d}/collect" and sample.objective == "grpo"
            assert (sample.advantage, sample.reward) == (item.advantage, item.reward)
            assert sample.weight == pytest.approx(item.score / len(draws)), "its share of the batch, by its score"
            assert (row.score, row.factor, row.age) == (item.score, item.score, number - item.generation_round)
            total = math.fsum(each.score for each in buffer.values() if each.status == "held")
            assert row.probability == pytest.approx(item.score / total)
            older += row.age > 0
    assert older > 0, "the batch has replayed samples"


def test_draws_are_counted(run: Played) -> None:
    counted: dict[str, int] = {}
    for number in NUMBERS:
        for row in run.rows(ReplayDraw, "credit", number):
            counted[row.generation_id] = counted.get(row.generation_id, 0) + 1
        for item in run.rows(ReplayItem, "credit", number):
            assert item.draws == counted.get(item.generation_id, 0)


def tensors_of(run: Played, number: int) -> dict[str, np.ndarray]:
    """The network that a round left."""
    rows = run.rows(ExtractorTensor, "measure", number)
    return {row.name: np.array(row.weights).reshape(row.shape) for row in rows}


def score_of(tensors: Mapping[str, np.ndarray], features: Sequence[float]) -> float:
    """What a network says of a sample, by plain arithmetic."""
    hidden = np.tanh(tensors["hidden.weight"] @ np.array(features) + tensors["hidden.bias"])
    logit = float(hidden @ tensors["output.weight"] + tensors["output.bias"][0])
    return 1 / (1 + math.exp(-logit))


def score_by_hand(run: Played, item: ReplayItem, number: int) -> float:
    """What the network of the round before says of a sample, from rows and plain arithmetic."""
    [episode] = [
        row for row in run.rows(Episode, "collect", item.generation_round) if row.episode_id == item.episode_id
    ]
    turns = [row for row in run.rows(Turn, "collect", item.generation_round) if row.episode_id == item.episode_id]
    actions = " ".join(turn.action or "" for turn in turns)
    [vector] = LexicalEmbedder().embed([f"{episode.goal}\n{turns[0].observation}\n{actions}"])
    numbers = (
        episode.reward, item.advantage, episode.turns, episode.tokens_sampled, number - item.generation_round, -0.5,
    )  # fmt: skip
    features = [math.copysign(math.log(1 + abs(value)), value) for value in numbers] + vector.tolist()
    return score_of(tensors_of(run, number - 1), features)


def test_scores_are_neutral_first_then_those_of_the_network_of_the_round_before(run: Played) -> None:
    assert {row.score for row in run.rows(ReplayItem, "credit", 1)} == {0.5}
    for number in (2, 3):
        held = [row for row in run.rows(ReplayItem, "credit", number) if row.status == "held"]
        assert {row.scored_round for row in held} == {number}, "refreshed in every round here"
        assert len({row.score for row in held}) > 1
        for row in held[::5]:
            assert row.score == pytest.approx(score_by_hand(run, row, number), abs=1e-5)


@pytest.mark.slow
def test_between_two_refreshes_scores_stay_and_new_samples_are_neutral(tmp_path: Path) -> None:
    slow = played(
        tmp_path, 3, method__evaluation__every=0, method__recipe__extractor__refresh_every=48,
        method__recipe__extractor__refresh_samples=5,
    )  # fmt: skip
    second, third = (by_id(slow.rows(ReplayItem, "credit", number), "generation_id") for number in (2, 3))
    assert sum(row.scored_round == 2 for row in second.values()) == 5
    assert all(row.score == 0.5 for row in second.values() if row.scored_round is None)
    for name, row in third.items():
        before = second.get(name)
        assert (row.score, row.scored_round) == ((before.score, before.scored_round) if before else (0.5, None))


def test_probes_are_training_tasks_that_nothing_else_plays(run: Played) -> None:
    config = run.method.recipe
    assert isinstance(config, ImportanceReplayConfig)
    trained: set[tuple[str, int]] = set()
    probed: list[set[tuple[str, int]]] = []
    for number in NUMBERS:
        trained |= {(row.family, row.environment_seed) for row in run.rows(Task, "plan", number)}
        trained |= {(row.family, row.environment_seed) for row in run.rows(Episode, "collect", number)}
        for stage in ("probe_before", "probe_after"):
            probed.append({(row.family, row.environment_seed) for row in run.rows(Episode, stage, number)})
        assert len(probed[-1]) == 12 and probed[-1] == probed[-2]
    assert all(one != other for one, other in combinations(probed[::2], 2)), "drawn anew in every round"
    # In no round is a level trained on that any round probes; and by the settings none can be, however many rounds.
    assert not trained & set().union(*probed)
    for family in run.method.families:
        assert {seed for name, seed in trained if name == family.name} <= set(range(512 - 64))
        assert {seed for name, seed in set().union(*probed) if name == family.name} <= set(range(512 - 64, 512))
        training, probes = config.training_seeds(family), config.probe_seeds(family)
        assert (training.start, training.count, probes.start, probes.count) == (0, 512 - 64, 512 - 64, 64)
        assert probes.start + probes.count <= family.evaluation_seeds.start
    held_out = {(row.family, row.environment_seed) for row in run.rows(Evaluation, "evaluate", ROUNDS)}
    assert len(held_out) == 8 and min(seed for _, seed in held_out) >= 1_000_000
    assert {row.stream for row in run.rows(Episode, "probe_after", 1)} == {"probe"}


def test_twins_have_one_level_and_one_random_stream(run: Played) -> None:
    for number in NUMBERS:
        before, after = (run.rows(Episode, stage, number) for stage in ("probe_before", "probe_after"))
        assert [(row.family, row.environment_seed) for row in before] == [
            (row.family, row.environment_seed) for row in after
        ]
        old, new = (
            {row.weights_digest for row in run.rows(Generation, stage, number)}
            for stage in ("probe_before", "probe_after")
        )
        [updated] = run.rows(Weights, "update_actor", number)
        assert new == {updated.weights_digest} and len(old) == 1 and old != new
    # The actor is as lucky after this round as before: with the same streams every game is the same.
    told = [[(row.turn, row.output) for row in run.rows(Turn, stage, TIE)] for stage in ("probe_before", "probe_after")]
    assert told[0] == told[1]
    # Luckier with the same streams: nothing that was won is lost.
    pairs = run.rows(ProbePair, "measure", IMPROVED)
    assert all(row.after >= row.before for row in pairs) and any(row.after > row.before for row in pairs)


@pytest.mark.parametrize(
    ("number", "verdict", "label"), [(IMPROVED, "improved", 1.0), (WORSE, "worse", 0.0), (TIE, "tie", None)]
)
def test_the_update_is_judged_by_its_probes(run: Played, number: int, verdict: str, label: float | None) -> None:
    [found] = run.rows(Improvement, "measure", number)
    assert (found.verdict, found.label, found.pairs) == (verdict, label, 12)
    rewards = {row.episode_id: row.reward for stage in ("probe_before", "probe_after") for row in run.rows(Episode, stage, number)}  # noqa: E501  # fmt: skip
    pairs = run.rows(ProbePair, "measure", number)
    assert all((row.before, row.after) == (rewards[row.before_id], rewards[row.after_id]) for row in pairs)
    assert found.difference == pytest.approx(sum(row.after - row.before for row in pairs) / 12)
    said = metrics(run, number)
    assert (said["updates_improved"], said["updates_worse"]) == (label == 1, label == 0)
    assert said["probe_gain"] == found.difference


def test_the_network_learns_from_labeled_rounds_and_rests_in_others(run: Played) -> None:
    def tensors(number: int) -> list[ExtractorTensor]:
        return run.rows(ExtractorTensor, "measure", number)

    assert [tensors(number)[0].steps for number in NUMBERS] == [8, 16, 16, 24]
    assert tensors(TIE) == tensors(TIE - 1) != tensors(TIE - 2)
    said = metrics(run, IMPROVED)
    assert (said["extractor_loss"], said["coupling_loss"]) == pytest.approx((math.log(2), 0.5)), "neutral, label 1"
    assert said["actor_loss"] == 0.25 and said["draws_labeled"] == len(run.rows(ReplayDraw, "credit", IMPROVED))
    assert "extractor_loss" not in metrics(run, TIE) and metrics(run, TIE)["draws_labeled"] == 0
    told = {row["round"]: row for row in replay_rows(summarize(run.run.path))}[str(IMPROVED)]
    assert [told[name] for name in ("actor loss", "cross-entropy", "coupling")] == ["0.25", "0.693", "0.5"]
    drawn = {metric for _, _, lines in SECTION.charts for _, metric, _ in lines}
    assert {"actor_loss", "extractor_loss", "coupling_loss"} <= drawn, "table and charts: each apart"
    # The window: the draws of both labeled rounds.
    examples = [len(run.rows(ReplayDraw, "credit", number)) for number in (IMPROVED, WORSE)]
    assert metrics(run, WORSE, "measure")["extractor_examples"] == sum(examples)


def losses_by_hand(run: Played, number: int, labels: Mapping[int, float]) -> tuple[float, float]:
    """Cross-entropy and mean |score - label| over the draws of these rounds, as the network came to a round."""
    tensors = tensors_of(run, number - 1)
    total = entropy = gap = 0.0
    for each, label in labels.items():
        for row in run.rows(ReplayDraw, "credit", each):
            score = score_of(tensors, row.features)
            entropy -= math.log(score if label else 1 - score)
            gap += abs(score - label)
            total += 1
    return entropy / total, gap / total


@pytest.mark.parametrize(("window", "rounds"), sampled([(3, [WORSE, 4]), (2, [4])], 2))
def test_the_network_learns_from_the_last_rounds_of_its_window_alone(
    run: Played, tmp_path: Path, window: int, rounds: list[int]
) -> None:
    """Of rounds 1, 2 and 4, whose updates were labeled, round 4 learns from those that a window of so many reaches."""
    other = {"method__evaluation__every": 0, "method__recipe__extractor__window": window}
    short = run if window == 3 else played(tmp_path, ROUNDS, **other)
    judged = {number: short.rows(Improvement, "measure", number)[0].label for number in NUMBERS}
    labels = {number: label for number, label in judged.items() if label is not None}
    assert list(labels) == [IMPROVED, WORSE, 4]
    told = metrics(short, 4, "measure")
    assert told["extractor_examples"] == sum(len(short.rows(ReplayDraw, "credit", number)) for number in rounds)
    losses = losses_by_hand(short, 4, {number: labels[number] for number in rounds})
    assert (told["extractor_loss"], told["coupling_loss"]) == pytest.approx(losses, abs=1e-5)
    assert losses_by_hand(short, 4, labels)[0] != pytest.approx(losses[0], abs=1e-3), "of all rounds it is another"


def test_what_probes_cost_is_counted(run: Played) -> None:
    for number in NUMBERS:
        probes = [row for stage in ("probe_before", "probe_after") for row in run.rows(Episode, stage, number)]
        said = metrics(run, number)
        assert said["probe_episodes"] == len(probes) == 24
        assert said["probe_tokens_sampled"] == sum(row.tokens_sampled for row in probes) > 0
        assert said["probe_tokens_read"] == sum(row.tokens_read for row in probes)
        episodes = run.rows(Episode, "collect", number)
        assert said["actor_tokens_sampled"] == sum(row.tokens_sampled for row in episodes)


def test_playing_and_evaluation_read_no_probe_and_no_buffer(run: Played) -> None:
    for number in NUMBERS:
        read = {
            stage: {key.split("/")[1] for key in run.run.manifest(number, stage).digested.inputs}
            for stage in ("plan", "collect", "evaluate")
        }
        before = "initialize" if number == 1 else "update_actor"
        assert read == {"plan": set(), "collect": {"plan", before}, "evaluate": {"update_actor"}}


@pytest.mark.slow
def test_the_record_is_intact_and_the_same_again(run: Played, tmp_path: Path) -> None:
    assert problems_of(RunDirectory.open(run.run.path), run.recipe, record_of(run.run.path)) == []
    assert played(tmp_path, ROUNDS, **WINDOWED).digests() == run.digests()


def test_the_experiment_that_ships_is_evaluated_on_five_variants_whose_probes_are_apart() -> None:
    method = load_experiment(ROOT / "conf/importance_replay.yaml").method
    config = method.recipe
    assert isinstance(config, ImportanceReplayConfig) and config.learns
    assert len({family.environment.model_dump_json() for family in method.families}) == 5
    for family in method.families:
        training, probes = config.training_seeds(family), config.probe_seeds(family)
        ranges = (training, probes, family.evaluation_seeds)
        assert not any(one.overlaps(other) for one, other in combinations(ranges, 2))
        assert training.count + probes.count == family.train_seeds.count


@pytest.mark.parametrize("stage", sampled(["credit", "collect", "probe_after", "measure"], 4))
def test_whatever_is_lost_is_made_again_with_the_same_digests(run: Played, tmp_path: Path, stage: str) -> None:
    copied = shutil.copytree(run.run.path, tmp_path / run.run.path.name)
    cut_back(copied, 3, stage)
    assert not (copied / f"rounds/0003/{stage}").exists() and not (copied / "rounds/0004/plan").exists()
    assert played(tmp_path, ROUNDS, **WINDOWED).digests() == run.digests()


@pytest.mark.slow
def test_an_update_that_takes_no_step_is_compared_with_nothing(tmp_path: Path) -> None:
    still = played(tmp_path, 2, trainer=Trainer(), method__evaluation__every=0)
    for number in (1, 2):
        assert still.rows(Episode, "probe_before", number) and not still.rows(Episode, "probe_after", number)
        assert still.rows(ProbePair, "measure", number) == []
        [found] = still.rows(Improvement, "measure", number)
        assert (found.verdict, found.label) == ("unchanged", None)
        assert still.rows(ExtractorTensor, "measure", number) == []


_EMPTY = pytest.param({"buffer__capacity": 0}, marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"weighting": "uniform"}, {"weighting": "none"}, _EMPTY], ids=str)
def test_the_comparisons_are_switches_of_the_same_experiment(
    run: Played, tmp_path: Path, changes: dict[str, object]
) -> None:
    settings = {f"method__recipe__{key}": value for key, value in changes.items()}
    other = played(tmp_path, 2, method__evaluation__every=0, **settings)
    stages = {stage.name for stage in recipe_of(experiment().method).stages}
    assert stages - {stage.name for stage in other.recipe.stages} == {"probe_before", "probe_after", "measure"}
    # Equal tasks and, in the first round, equal episodes: what differs is what is trained.
    assert other.rows(Task, "plan", 2) == run.rows(Task, "plan", 2)
    assert other.rows(Episode, "collect", 1) == run.rows(Episode, "collect", 1)
    samples = other.rows(Sample, "credit", 2)
    if changes.get("weighting") == "uniform":
        draws, held = other.rows(ReplayDraw, "credit", 2), other.rows(ReplayItem, "credit", 2)
        assert all(row.probability == pytest.approx(1 / len(held)) and row.factor == 1 for row in draws)
        assert [row.weight for row in samples] == pytest.approx([1 / len(draws)] * len(draws))
        assert {row.score for row in held} == {0.5} and other.rows(ReplayEmbedding, "credit", 2) == []
        assert {row.source for row in samples} == {"0001/collect", "0002/collect"}
    else:
        assert {row.source for row in samples} == {"0002/collect"}, "the round's own, and nothing is kept"
        assert {row.weight for row in samples} == {1 / 24} and other.tables(2, "credit") == {"samples", "metrics"}
        assert "replay_buffer" not in metrics(other, 2)
    assert "probe_episodes" not in metrics(other, 2)


@pytest.mark.parametrize(
    ("key", "value", "where"),
    [
        ("method.rollout.search_and_ask", {}, "method.rollout.search_and_ask"),
        ("method.families.0.reward", {"success": 1, "failure": -1}, "method.families.0.reward"),
        ("method.recipe.probe.pool", 512, "method.families.0.train_seeds.count"),
        ("method.recipe.probe.tasks", 65, "method.recipe.probe.tasks"),
        ("method.recipe.extractor", {"extractor_coefficient": 0, "coupling_coefficient": 0}, "method.recipe.extractor"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_set(key: str, value: object, where: str) -> None:
    with pytest.raises(BadInput) as refused:
        load_experiment(Path("conf/importance_replay_tiny.yaml"), {key: value})
    assert refused.value.where is not None and where in refused.value.where


def test_the_sketchs_settings_are_in_a_file_of_their_own() -> None:
    method = load_experiment(ROOT / "conf/paper/importance_replay.yaml").method
    config = method.recipe
    assert isinstance(config, ImportanceReplayConfig) and config.learns and len(method.families) == 5
    assert (config.buffer.capacity, config.buffer.batch) == (100_000, 32)
    assert config.buffer.steps == 50 * method.episodes
    extractor = config.extractor
    assert (extractor.refresh_every, extractor.refresh_samples) == (10, 1000)
    assert (extractor.extractor_coefficient, extractor.coupling_coefficient) == (0.5, 0.1)
