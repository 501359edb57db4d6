"""Episodes of several sequences, built by hand, against arithmetic that is written out here.

Every output is trained once, in the sequence that sampled it, with the advantage of its episode. Under `grpo` an
episode counts by the mean over all of its trained tokens, under `token_sum` by their sum, however they are spread over
sequences. The expected numbers come from games as they are described below and from plain forward passes of the model
over each sequence alone; nothing of `crl.credit` or `crl.learn` makes them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from crl.checks import check_tables
from crl.config import ActorObjective, DeepSpeedConfig, OptimizerConfig, RoleConfig, SamplingConfig, StreamObjective
from crl.config.mechanisms import SelfDistillationConfig
from crl.credit.samples import Rollout, grpo_samples, records_of, rollout_samples
from crl.errors import DataCheckFailed
from crl.protocols import Sampled, Start, StopReason
from crl.recipes.complementary.mechanisms.self_distillation import nll_samples
from crl.records import Episode, Generation, Row, Sample, StrippedContext, Task, Turn, table_of
from crl.report.episodes import replays
from crl.report.page import render
from crl.report.views import query
from crl.rollout.live import EpisodeSlot, Guide, LiveEpisode, LiveSequence, sequence_id
from crl.rollout.play import PlayedEpisode, played_episode, stripped_contexts
from tests.unit.report.builder import write_stage
from tests.unit.rollout import fakes

ROOT = Path(__file__).parents[2]
VOCABULARY, TEMPERATURE, ROUND, STAGE = 32, 0.9, 1, "collect"
WEIGHTS = "0" * 64
LossType = Literal["grpo", "token_sum"]
Piece = tuple[str, int]
"""`read` so many tokens that no turn wrote, `say` so many in the next turn, or show the output of a turn `again`."""


@dataclass(frozen=True)
class Game:
    """A game of a group: what was read and said in each of its sequences."""

    group: int
    guided: bool
    reward: float
    sequences: tuple[tuple[Piece, ...], ...]


ONE = ((("read", 5), ("say", 3), ("read", 2), ("say", 4)),)
# The second prompt shows the last output again. In the third nothing is said: the game is over by then.
THREE = (
    (("read", 5), ("say", 3), ("read", 2), ("say", 2)),
    (("read", 4), ("again", 1), ("read", 1), ("say", 5), ("read", 2), ("say", 1)),
    (("read", 4), ("again", 2)),
)
WINDOWS = ((("read", 6), ("say", 2)), (("read", 4), ("again", 0), ("say", 4)), (("read", 7), ("say", 3)))
LATE = ((("read", 3),), (("read", 3), ("say", 2)), (("read", 3), ("again", 0), ("read", 1), ("say", 6)))
GAMES = (
    Game(0, True, 1.0, THREE), Game(0, True, 0.25, ONE), Game(0, True, 0.0, WINDOWS),
    Game(0, False, 1.0, ONE), Game(0, False, 0.0, LATE), Game(0, False, 0.0, ONE),
    Game(1, False, 0.25, WINDOWS), Game(1, False, 0.0, THREE), Game(1, True, 1.0, ONE),
)  # fmt: skip


def played(game: Game, member: int, rng: np.random.Generator) -> PlayedEpisode:
    """The rows of a game: its sequences grow as in a wave."""
    name = f"r0001-walk-g{game.group:04d}-m{member:03d}"
    task = Task(
        episode_id=name, round=ROUND, family="walk", group=game.group, member=member, environment_seed=game.group,
        stream="guided" if game.guided else "free", goal="go", first_observation="here", query="go here",
    )  # fmt: skip
    guides = (Guide("e1", "1" * 64, "left"), Guide("e2", "2" * 64, "or\nright")) if game.guided else ()
    row = LiveEpisode(
        slot=EpisodeSlot(task, guides), start=Start("go", "here", ("left",)), actions=("left",), observation="here",
        seed=0, sequences=[], success=game.reward == 1, reward=game.reward, last_observation="there",
        stop_reason=StopReason.success if game.reward == 1 else StopReason.failure,
    )  # fmt: skip
    said: list[list[int]] = []

    def ids(kind: str, number: int) -> list[int]:
        return said[number] if kind == "again" else [int(token) for token in rng.integers(0, VOCABULARY, number)]

    for index, pieces in enumerate(game.sequences):
        begin = next((at for at, (kind, _) in enumerate(pieces) if kind == "say"), len(pieces))
        row.sequences.append(sequence(name, index, [token for piece in pieces[:begin] for token in ids(*piece)]))
        for kind, number in pieces[begin:]:
            if kind != "say":
                row.sequence.append(ids(kind, number))
                continue
            said.append(ids(kind, number))
            span = row.sequence.append_sampled(Sampled(said[-1], [-1.0] * number, StopReason.end_of_turn))
            row.turns.append(
                Turn(
                    episode_id=name, turn=len(row.turns), observation="here", output=f"said {len(said)}",
                    action="left", valid=True, feedback=None, generation_id=row.sequence.generation_id,
                    first_token=span[0], last_token=span[1], stop_reason="end_of_turn",
                )
            )  # fmt: skip
    sampling = SamplingConfig(temperature=TEMPERATURE)
    return played_episode(row, fakes.method(), sampling, WEIGHTS, STAGE)


def sequence(episode_id: str, index: int, first: list[int]) -> LiveSequence:
    """One that begins with these tokens, of which two are the experience."""
    name = sequence_id(episode_id, STAGE, index)
    return LiveSequence(name, f"prompt {index}", lambda _: first[2:], list(first))


def all_played(model: Path) -> list[PlayedEpisode]:
    """The games as they were played by a model that has moved a little since: ratios are on both sides of the clip."""
    rng = np.random.default_rng(11)
    found = []
    for member, game in enumerate(GAMES):
        each = played(game, member, rng)
        for sequence in each.sequences:
            record = sequence.generation
            exact = logprobs_of(model, record).detach().numpy()
            noise = 0.3 * rng.normal(size=len(exact))
            stored = np.where(np.array(record.loss_mask[1:]) == 1, np.minimum(exact + noise, -1e-3), 0.0)
            record.logprobs[1:] = stored.tolist()
        found.append(each)
    return found


_NETWORKS: dict[Path, Any] = {}


def network_of(model: Path) -> Any:
    """The model in float64, by transformers alone."""
    import torch
    from transformers import AutoModelForCausalLM

    if model not in _NETWORKS:
        _NETWORKS[model] = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64).eval()
    return _NETWORKS[model]


def logprobs_of(model: Path, record: Generation) -> Any:
    """log π of every token but the first, by a forward pass over this sequence alone."""
    import torch

    ids = torch.tensor([record.token_ids])
    scaled = torch.log_softmax(network_of(model)(ids).logits[0, :-1] / TEMPERATURE, -1)
    return scaled.gather(1, ids[0, 1:, None])[:, 0]


def advantages_by_hand() -> list[float]:
    """Of each game, among those of its group and stream."""
    found = []
    for game in GAMES:
        rewards = [each.reward for each in GAMES if (each.group, each.guided) == (game.group, game.guided)]
        mean = sum(rewards) / len(rewards)
        deviation = (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5
        found.append((game.reward - mean) / deviation if deviation else 0.0)
    return found


def weights_by_hand() -> list[float]:
    """Of each game: 1/groups, 1/2, and 1 over the games of its group and stream."""
    alike = [sum((each.group, each.guided) == (game.group, game.guided) for each in GAMES) for game in GAMES]
    return [1 / 2 / 2 / count for count in alike]


def spoken(game: Game) -> int:
    """Tokens of all turns of a game."""
    return sum(number for pieces in game.sequences for kind, number in pieces if kind == "say")


def terms_by_hand(model: Path, each: PlayedEpisode, advantage: float) -> list[Any]:
    """min(rho A, clip(rho) A) of every token that a turn wrote, where it was sampled."""
    import torch

    found = []
    for turn in each.turns:
        [record] = [row for row in each.generations if row.generation_id == turn.generation_id]
        now = logprobs_of(model, record)
        for at in range(turn.first_token, turn.last_token):
            rho = torch.exp(now[at - 1] - record.logprobs[at])
            found.append(torch.minimum(rho * advantage, rho.clamp(0.8, 1.2) * advantage))
    return found


def updated(model: Path, samples: Sequence[Sample], objectives: Any) -> tuple[dict[str, float], dict[str, Any]]:
    """Metrics and gradients of an update by the engine."""
    from crl.learn.trainer import Trainer

    gradients: dict[str, Any] = {}
    role = RoleConfig(
        optimizer=OptimizerConfig(kind="sgd", learning_rate=1e-3, max_grad_norm=0),
        deepspeed=DeepSpeedConfig(micro_batch=3),
    )
    trainer = Trainer(role, model_path=model, checkpoint=None, threads=1)
    metrics = trainer.update(samples, objectives, inspect=gradients.update)
    trainer.dispose()
    return metrics, gradients


def assert_gradients(model: Path, loss: Any, gradients: dict[str, Any]) -> None:
    """The gradients of a loss by plain autograd are those of the update."""
    import torch

    network = network_of(model)
    network.zero_grad()
    loss.backward()
    expected = {name: value.grad for name, value in network.named_parameters() if value.grad is not None}
    assert expected.keys() == gradients.keys()
    for name, value in expected.items():
        error = float(torch.linalg.vector_norm(gradients[name] - value) / torch.linalg.vector_norm(value))
        assert error < 1e-4, f"{name}: {error}"


@pytest.mark.parametrize("loss_type", ["grpo", "token_sum"])
def test_advantages_weights_and_gradients_of_eq_5(model: Path, loss_type: LossType) -> None:
    from crl.learn.terms import objectives

    games = all_played(model)
    records = {row.generation_id: row for each in games for row in each.generations}
    config = ActorObjective(loss_type=loss_type)
    samples = grpo_samples([each.episode for each in games], records, config, round=ROUND)
    of_episode: dict[str, list[Sample]] = {}
    for sample in samples:
        of_episode.setdefault(sample.generation_id.partition("-collect")[0], []).append(sample)
    loss: Any = 0.0
    for game, each, advantage, weight in zip(GAMES, games, advantages_by_hand(), weights_by_hand(), strict=True):
        mine = of_episode[each.episode.episode_id]
        assert [sample.advantage for sample in mine] == pytest.approx([advantage] * len(mine)), "that of the episode"
        sampled_in = [
            name for name in each.episode.generation_ids if any(turn.generation_id == name for turn in each.turns)
        ]
        assert [sample.generation_id for sample in mine] == sampled_in, "none of a sequence in which nothing was said"
        trained = [sum(sample.loss_mask) for sample in mine]
        assert sum(trained) == spoken(game), "each once, however often it is shown"
        if loss_type == "grpo":
            assert [row.weight for row in mine] == pytest.approx([weight * n / spoken(game) for n in trained])
        else:
            assert [row.weight for row in mine] == pytest.approx([weight] * len(mine))
        terms = terms_by_hand(model, each, advantage)
        assert len(terms) == spoken(game)
        loss = loss - weight * sum(terms) / (spoken(game) if loss_type == "grpo" else 1)
    check_tables({Sample: table_of(Sample, samples)}, where="here")
    metrics, gradients = updated(model, samples, objectives(config))
    assert metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert metrics["clipped_high"] > 0 and metrics["clipped_low"] > 0
    assert_gradients(model, loss, gradients)


@pytest.mark.parametrize("loss_type", ["grpo", "token_sum"])
def test_rollouts_of_other_recipes_weigh_one_each(model: Path, loss_type: LossType) -> None:
    """DreamGym, ERL, replay without a buffer: 1/N of N rollouts, none of whose sequences counts twice."""
    games = all_played(model)
    config = StreamObjective(loss_type=loss_type)
    rollouts = [Rollout("actor", each.generations, each.episode.reward, each.episode.group) for each in games]
    samples = rollout_samples(rollouts, config, lambda role: 1 / len(rollouts), round=ROUND)
    coefficients: dict[str, set[float]] = {}
    for sample in samples:
        by_token = sample.weight / (sum(sample.loss_mask) if loss_type == "grpo" else 1)
        coefficients.setdefault(sample.generation_id.partition("-collect")[0], set()).add(round(by_token, 12))
    for game, each in zip(GAMES, games, strict=True):
        alike = 1 / len(GAMES) / (spoken(game) if loss_type == "grpo" else 1)
        assert coefficients[each.episode.episode_id] == {round(alike, 12)}


@pytest.mark.parametrize("loss_type", ["grpo", "token_sum"])
def test_an_advantage_may_differ_from_token_to_token(loss_type: Any) -> None:
    """Objectives take one of each token: what a column of turns would give them."""
    import torch

    from crl.learn.objectives import cispo_objective, grpo_objective

    rng = np.random.default_rng(3)
    shape = (3, 7)
    logprobs, behavior, advantages = -rng.random(shape), -rng.random(shape), rng.normal(size=shape)
    mask, weights = (rng.random(shape) < 0.6).astype(float), rng.random(3)
    tensors = [torch.tensor(value) for value in (logprobs * mask, behavior * mask, mask, advantages, weights)]
    expected, expected_cispo = 0.0, 0.0
    for b in range(3):
        places = [t for t in range(7) if mask[b, t]]
        for t in places:
            rho = np.exp(logprobs[b, t] - behavior[b, t])
            term = min(rho * advantages[b, t], min(max(rho, 0.8), 1.2) * advantages[b, t])
            expected -= weights[b] * term / (len(places) if loss_type == "grpo" else 1)
            expected_cispo -= weights[b] * min(max(rho, 0.9), 1.1) * advantages[b, t] * logprobs[b, t] / mask.sum()
    loss, _ = grpo_objective(*tensors, ActorObjective(loss_type=loss_type))
    assert float(loss) == pytest.approx(expected)
    from crl.config import ExtractorObjective

    loss, _ = cispo_objective(*tensors, ExtractorObjective(), normalizer=float(mask.sum()))
    assert float(loss) == pytest.approx(expected_cispo)


def test_stripped_contexts_are_learned_token_by_token(model: Path) -> None:
    """Self-distillation beside eq. 5: - weight · mean of log π over all tokens that guided games wrote."""
    from crl.learn.terms import objectives

    games = [each for each in all_played(model) if each.episode.guided]
    contexts = {row.generation_id: row for each in games for row in stripped_contexts(each)}
    records = {row.generation_id: row for each in games for row in each.generations}
    assert len(contexts) == len(records) == 8
    for name, row in contexts.items():
        assert row.token_ids == records[name].token_ids[2 : 2 + len(row.token_ids)] and row.removed_tokens >= 2
    config = SelfDistillationConfig(weight=0.5)
    samples = nll_samples([each.episode for each in games], contexts, records, config, round=ROUND)
    assert [sample.generation_id for sample in samples] == [
        name for each in games for name in dict.fromkeys(turn.generation_id for turn in each.turns)
    ]
    taught = []
    for turn in (turn for each in games for turn in each.turns):  # two tokens earlier than in its own sequence
        stripped = contexts[turn.generation_id]
        alone = dataclasses.replace(records[stripped.generation_id], token_ids=stripped.token_ids)
        taught.append(logprobs_of(model, alone)[turn.first_token - 3 : turn.last_token - 3])
    count = sum(map(len, taught))
    assert count == sum(spoken(game) for game in GAMES if game.guided)
    loss = -0.5 * sum(each.sum() for each in taught) / count
    metrics, gradients = updated(model, samples, objectives())
    assert metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert_gradients(model, loss, gradients)


def tables_of(games: Sequence[PlayedEpisode]) -> dict[type[Row], list[Any]]:
    return {
        Episode: [each.episode for each in games],
        Turn: [turn for each in games for turn in each.turns],
        Generation: [row for each in games for row in each.generations],
        StrippedContext: [row for each in games if each.episode.guided for row in stripped_contexts(each)],
    }


Change = Callable[[Any], Any]


def masked(row: Generation, *, more: bool = False) -> Generation:
    """The second sequence of the first game, trained on what it shows again: on `more` tokens, or on as many as before,
    with two less where they were sampled."""
    mask, logprobs = list(row.loss_mask), list(row.logprobs)
    mask[4:6], logprobs[4:6] = [1, 1], [-1.0, -1.0]
    if not more:
        mask[7:9], logprobs[7:9] = [0, 0], [0.0, 0.0]
    return dataclasses.replace(row, loss_mask=mask, logprobs=logprobs)


BREACHES: list[tuple[str, type[Row], int, Change]] = [
    (
        "the trained tokens of a sequence are those of its turns",
        Generation,
        1,
        lambda row: masked(row),
    ),
    (
        "the trained tokens of a sequence are those of its turns",
        Generation,
        1,
        lambda row: masked(row, more=True),
    ),
    (
        "a turn is in a sequence of its episode",
        Turn,
        0,
        lambda row: dataclasses.replace(row, generation_id="r0001-walk-g0000-m001-collect"),
    ),
    (
        "the trained tokens of a sequence are those of its turns",
        Turn,
        2,
        lambda row: dataclasses.replace(row, generation_id="r0001-walk-g0000-m000-collect"),
    ),
    (
        "a token record of the actor is a sequence of one episode",
        Episode,
        0,
        lambda row: dataclasses.replace(row, generation_ids=row.generation_ids[:2]),
    ),
    (
        "every sequence of an episode has its token record",
        Episode,
        0,
        lambda row: dataclasses.replace(row, generation_ids=[*row.generation_ids, "another"]),
    ),
    (
        "an episode read and wrote the tokens of its sequences",
        Episode,
        0,
        lambda row: dataclasses.replace(row, tokens_read=row.tokens_read - 2),
    ),
    (
        "every sequence of a guided episode has its stripped context",
        StrippedContext,
        2,
        lambda row: dataclasses.replace(row, generation_id="another"),
    ),
]


@pytest.mark.slow
def test_rows_of_several_sequences_are_sound_and_every_flaw_is_found(model: Path) -> None:
    games = all_played(model)
    rows = tables_of(games)
    sound = {row_type: table_of(row_type, listed) for row_type, listed in rows.items()}
    check_tables(sound, where="here")
    first = games[0].episode
    assert first.generation_ids == [f"{first.episode_id}-collect{end}" for end in ("", "-s1", "-s2")]
    assert (first.tokens_sampled, first.tokens_read) == (11, 7 + 9 + 9), "what is shown again is read again"
    assert [row.stop_reason for row in games[0].generations] == ["continued", "continued", "success"]
    for rule, row_type, place, change in BREACHES:
        listed = [change(row) if at == place else row for at, row in enumerate(rows[row_type])]
        with pytest.raises(DataCheckFailed, match=re.escape(rule)):
            check_tables({**sound, row_type: table_of(row_type, listed)}, where="here")


@pytest.mark.slow
def test_sql_and_the_report_show_every_sequence(model: Path, tmp_path: Path) -> None:
    games = all_played(model)
    records = {row.generation_id: row for each in games for row in each.generations}
    write_stage(tmp_path, ROUND, STAGE, [*tables_of(games).values()])
    samples = grpo_samples([each.episode for each in games], records, ActorObjective(), round=ROUND)
    write_stage(tmp_path, ROUND, "credit", [samples])
    first = games[0].episode
    _, rows = query(
        tmp_path,
        "SELECT sequence, generation_id, tokens, tokens_read, tokens_sampled, tokens_trained, turns "
        f"FROM sequences WHERE episode_id = '{first.episode_id}' ORDER BY sequence",
    )
    assert rows == [
        (0, first.generation_ids[0], 12, 7, 5, 5, [0, 1]),
        (1, first.generation_ids[1], 15, 9, 6, 6, [2, 3]),
        (2, first.generation_ids[2], 9, 9, 0, 0, []),
    ]
    _, sums = query(
        tmp_path,
        "SELECT sum(s.tokens_read) - any_value(e.tokens_read), sum(s.tokens_sampled) - any_value(e.tokens_sampled) "
        "FROM sequences AS s JOIN episodes AS e USING (episode_id) GROUP BY episode_id",
    )
    assert set(sums) == {(0, 0)} and len(sums) == len(GAMES)
    weights = query(
        tmp_path,
        "SELECT episode_id, sum(weight), count(*) FROM samples JOIN sequences USING (generation_id) "
        "GROUP BY 1 ORDER BY 1",
    )[1]
    assert [row[1] for row in weights] == pytest.approx(weights_by_hand()) and weights[0][2] == 2
    shown = query(tmp_path, "SELECT entry_id, content_digest, experience FROM episodes ORDER BY episode_id")[1]
    assert shown[0] == ("e1", "1" * 64, first.experience) == ("e1", "1" * 64, "1. left\n2. or\n   right")
    assert shown[3] == (None, None, None)
    embedded = {each["id"]: each for each in replays(tmp_path, {ROUND: len(GAMES)}).episodes}
    assert embedded[first.episode_id]["sequences"] == [
        {"id": name, "tokens": tokens, "trained": trained, "turns": turns}
        | dict.fromkeys(("dropped_turns", "dropped_tokens"), 0 if turns else None)
        for _, name, tokens, _, _, trained, turns in rows
    ]
    page = render(tmp_path)
    assert all(name in page for each in games for name in each.episode.generation_ids)


def test_records_of_an_episode_are_in_its_order(model: Path) -> None:
    each = all_played(model)[0]
    records = {row.generation_id: row for row in reversed(each.generations)}
    assert records_of(each.episode, records) == each.generations
