"""Games that a person recorded become a part of the method, and a warm start plays them once more."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from crl.cli.playing import Recording, action_of
from crl.config import Experiment, FamilyConfig
from crl.config.load import load_experiment
from crl.config.recorded import FORMAT, read_recorded
from crl.envs import make_environment
from crl.errors import BadInput, StageFailed
from crl.recipes.complementary.ready import check_demonstrations
from crl.recipes.complementary.recorded import played_again, without_refused
from crl.records import Episode, Metric, Sample, Turn, rows_of
from crl.rounds.context import StageContext
from crl.rounds.demonstrations import ScriptedRole
from tests.unit.recipes.played import Services
from tests.unit.rollout.fakes import END, CharacterChat

ROOT = Path(__file__).parents[3]
SEEDS = (3, 8, 21)


def family() -> FamilyConfig:
    return load_experiment(ROOT / "conf/tiny.yaml").method.families[0]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Three games of the oracle's, the second with an answer that is refused."""
    path, lake = tmp_path / "games.jsonl", family()
    recording = Recording(path, lake, SEEDS[0])
    environment = make_environment(lake)
    for seed in SEEDS:
        start = environment.reset_many([seed])[0]
        turns: list[dict[str, Any]] = []
        step = None
        while step is None or not step.done:
            move = "fly" if seed == SEEDS[1] and not turns else f"I think {environment.oracle(0)}."
            action = action_of(move, start.actions)
            step = environment.step_many({0: action})[0]
            turns.append({"text": move, "action": action, "legal": step.legal, "observation": step.observation})
        recording.keep(seed, start, turns, step)
    return path


def made(file: Path, **changes: Any) -> Experiment:
    warm = {"demonstrations": "recorded", "recorded": file.name, "extractor_episodes": 0, "learning_rate": 1e-3}
    settings = {
        "method.recipe.warm_start": {**warm, **changes.pop("warm", {})},
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    import yaml

    from crl.config.load import parse_experiment

    data = yaml.safe_load((ROOT / "conf/tiny.yaml").read_text(encoding="utf-8"))
    data["method"]["prompts"] = yaml.safe_load((ROOT / "conf/prompts/tiny.yaml").read_text(encoding="utf-8"))
    return parse_experiment(data, settings, base=file.parent, where="here")


def context(made: Experiment) -> StageContext:
    services = Services(made)
    return cast(
        StageContext,
        SimpleNamespace(
            method=made.method, services=services, stage=SimpleNamespace(name="warm_start_actor"), round=0,
            environment=lambda family: services.environment(family, 0), progress=lambda *arguments, **metrics: None,
            add_games=lambda games: None,
        ),
    )  # fmt: skip


class Chat(CharacterChat):
    def answer(self, text: str) -> list[int]:
        return [*map(ord, text), END]


def again(made: Experiment) -> Sequence[Any]:
    return played_again(context(made), ScriptedRole(cast(Any, Chat()), 100_000, "w"))


def test_the_method_holds_what_was_said_and_older_ones_keep_their_digest(file: Path) -> None:
    plain = load_experiment(ROOT / "conf/tiny.yaml").method
    assert "recorded" not in plain.recipe.model_dump(mode="json")["warm_start"]
    method = made(file).method
    digest = method.digest()
    file.write_text(file.read_text().replace("I think", "I know"))
    assert made(file).method.digest() != digest, "its content is in the digest"
    file.unlink()
    assert type(method).model_validate(method.model_dump(mode="json")).digest() == digest, "and needs the file no more"


def test_games_are_played_once_more_and_refused_answers_are_not_learned(file: Path) -> None:
    experiment = made(file)
    check_demonstrations(experiment.method)
    played = again(experiment)
    assert [each.episode.environment_seed for each in played] == list(SEEDS)
    assert all(each.episode.success for each in played)
    assert played[0].turns[0].output.startswith("I think "), "as it was typed"
    second = played[1]
    assert [turn.valid for turn in second.turns] == [False] + [True] * (len(second.turns) - 1)
    [kept], refused = without_refused(second), second.turns[0]
    assert sum(kept.loss_mask) == sum(turn.last_token - turn.first_token for turn in second.turns[1:]) > 0
    assert not any(kept.loss_mask[refused.first_token : refused.last_token])
    assert without_refused(played[0]) == played[0].generations


def test_what_was_typed_is_worded_in_the_form_of_the_experiment(file: Path) -> None:
    said = again(made(file, method__rollout__action_format="tag"))[0].turns[0].output
    assert said.startswith("<action>") and said.endswith("</action>")
    assert len(again(made(file, warm={"actor_episodes": 2}))) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"warm": {"demonstrations": "oracle"}}, "demonstrations is oracle, and recorded games are named"),
        ({"warm": {"recorded": None}}, "demonstrations is recorded, and recorded games are not"),
        ({"method__families__0__environment__max_turns": 7}, "which no family plays"),
        ({"method__families.0.train_seeds": {"start": 0, "count": 10}}, "seed 21, which is none that family lake"),
        ({"warm": {"recorded": "missing.jsonl"}}, "cannot be read"),
    ],
)
def test_games_that_cannot_be_learned_are_refused(file: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        made(file, **changes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a file of recorded games"),
        ("{]", "line 1 of .* is not JSON"),
        ('{"format": "other"}', "not a file of recorded games"),
        (json.dumps({"format": FORMAT, "environment": {}}), "no finished game"),
        (json.dumps({"format": FORMAT, "environment": {}}) + '\n{"seed": 1, "tur', "line 2 of .* is not JSON"),
        (json.dumps({"format": FORMAT, "environment": {}}) + '\n{"seed": 1}', "line 2 of .* is not a game"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "games.jsonl"
    path.write_text(text)
    with pytest.raises(BadInput, match=said):
        read_recorded(path)


def test_a_game_that_goes_otherwise_is_refused(file: Path) -> None:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[1]["observation"] += " "
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(BadInput, match="seed 3 starts otherwise"):
        check_demonstrations(made(file).method)
    lines[1]["observation"] = lines[1]["observation"][:-1]
    lines[2]["turns"] = lines[2]["turns"][:-1]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(StageFailed, match="goes on after its"):
        again(made(file))


@pytest.mark.slow
def test_a_run_starts_from_recorded_games(file: Path, tmp_path: Path) -> None:
    from tests.learning.harness import train

    run = train(made(file), tmp_path / "runs", 0)
    episodes = rows_of(Episode, run.read(0, "warm_start_actor", Episode))
    assert [each.environment_seed for each in episodes] == list(SEEDS)
    samples = rows_of(Sample, run.read(0, "warm_start_actor", Sample))
    turns = rows_of(Turn, run.read(0, "warm_start_actor", Turn))
    learned = sum(turn.last_token - turn.first_token for turn in turns if turn.valid)
    assert sum(sum(sample.loss_mask) for sample in samples) == learned
    metrics = {row.name: row.value for row in rows_of(Metric, run.read(0, "warm_start_actor", Metric))}
    assert metrics["demonstrations"] == metrics["demonstrations_won"] == len(SEEDS)
