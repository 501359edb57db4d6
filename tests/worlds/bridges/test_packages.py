"""TextArena, reasoning-gym and TextWorld as they are installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from crl.envs import check_environment
from crl.errors import BadInput
from crl.protocols import StopReason
from crl.worlds.bridges.reasoning_gym import UNUSABLE, ReasoningGymConfig
from crl.worlds.bridges.textarena import TextArenaConfig
from crl.worlds.bridges.textworld import TextWorldConfig
from tests.worlds.bridges.play import episodes
from tests.worlds.bridges.test_same_play import elsewhere

pytestmark = pytest.mark.slow


@pytest.fixture
def textarena():
    return pytest.importorskip("textarena", reason="the extra textarena is not installed")


@pytest.fixture
def reasoning_gym():
    return pytest.importorskip("reasoning_gym.factory", reason="the extra reasoning_gym is not installed")


@pytest.fixture
def textworld():
    return pytest.importorskip("textworld", reason="the extra textworld is not installed")


def test_a_number_is_guessed(textarena):
    check_environment(TextArenaConfig())
    environment = TextArenaConfig().make()
    (start,) = environment.reset_many([3])
    assert "between 1 and 20" in start.goal and start.observation == "The game begins."
    low, high, step = 1, 20, None
    while step is None or not step.done:
        middle = (low + high) // 2
        # The game's own wrapper adds brackets.
        step = environment.step_many({0: str(middle)})[0]
        assert step.legal
        low, high = (middle + 1, high) if "higher" in step.observation else (low, middle - 1)
    assert (step.success, step.reward, step.stop_reason) == (True, 1.0, StopReason.success)
    assert "guessed the correct number" in step.feedback
    environment.reset_many([3])
    first = environment.step_many({0: "[99]"})[0]
    assert not first.legal and "outside the range" in first.feedback and not first.done
    second = environment.step_many({0: "no number"})[0]
    assert second.done and not second.legal and second.stop_reason is StopReason.failure
    with pytest.raises(BadInput, match="over the network"):
        TextArenaConfig(id="TwentyQuestions-v0").make()


def test_every_single_player_game_starts_or_is_refused(textarena):
    """Each id with its own name: what starts plays the same in another process."""
    from textarena.envs.registration import ENV_REGISTRY

    played = []
    for name in sorted(ENV_REGISTRY):
        if name.endswith(("-raw", "-train")):
            continue
        try:
            check_environment(TextArenaConfig(id=name))
        except BadInput as error:
            assert error.next_step, name
            continue
        played.append(name)
    assert len(played) >= 50
    for name in played:
        config = {"kind": "textarena", "id": name}
        try:
            first = episodes(config, [1, 2], 2)
            assert elsewhere(config, [2, 1], 1) == first, name
        except AssertionError as error:
            pytest.fail(f"{name}: {error}")


def test_every_dataset_answers_itself_or_says_that_it_cannot(reasoning_gym):
    """The stored answer gets the full mark wherever the oracle gives one."""
    silent = set()
    for name in sorted(reasoning_gym.DATASETS.keys() - UNUSABLE.keys()):
        environment = ReasoningGymConfig(dataset=name, held_out_from=None).make()
        starts = environment.reset_many([1, 2])
        for slot in range(len(starts)):
            said = environment.oracle(slot)
            if said is None:
                silent.add(name)
            elif not environment.step_many({slot: said})[slot].success:
                pytest.fail(f"{name}: the oracle's answer is not paid in full")
    assert silent <= {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}, silent


@pytest.fixture
def house(textworld, tmp_path: Path) -> Path:
    """Three games, made as TextWorld makes them."""
    for seed in (1, 2, 3):
        options = textworld.GameOptions()
        options.seeds, options.path = seed, str(tmp_path / f"{seed}.z8")
        options.nb_rooms, options.nb_objects, options.chaining.max_depth = 2, 3, 3
        textworld.make(options)
    return tmp_path


def test_a_made_game_is_won_by_its_own_policy_and_is_the_same_everywhere(house: Path):
    for commands, pattern in (("listed", "*.z8"), ("listed", "*.json"), ("free", "*.z8")):
        config = {"kind": "textworld", "games": f"{house}/{pattern}", "held_out_from": None, "commands": commands}
        environment = TextWorldConfig.model_validate(config).make()
        live = dict(enumerate(environment.reset_many(range(3))))
        assert not any("$" in start.observation or ">" in start.observation for start in live.values())
        won = 0
        while live:
            steps = environment.step_many({slot: environment.oracle(slot) for slot in live})
            won += sum(step.success and step.reward == 1.0 for step in steps.values())
            live = {slot: step for slot, step in steps.items() if not step.done}
        assert won == 3
        environment.close()
        first = episodes(config, range(33), 11)
        assert elsewhere(config, [*range(32, -1, -1)], 5) == first


def test_a_json_alone_is_compiled(
    house: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    (house / "1.z8").rename(house / "1.kept")
    environment = TextWorldConfig(games=f"{house}/1.json", held_out_from=None).make()
    compiled = environment.reset_many([0])[0]
    environment.close()
    (house / "1.kept").rename(house / "1.z8")
    environment = TextWorldConfig(games=f"{house}/1.z8", held_out_from=None).make()
    assert environment.reset_many([0])[0] == compiled
    environment.close()
