"""MiniGrid and BabyAI: what is seen in words, actions by name, the bot, levels that are held out."""

from __future__ import annotations

import pytest

from crl.envs import check_environment
from crl.errors import BadInput
from crl.protocols import StopReason
from crl.worlds.bridges.minigrid import ACTIONS, MiniGridConfig

pytest.importorskip("minigrid", reason="the extra minigrid is not installed")


def test_the_view_in_words_is_what_is_in_front_of_the_agent():
    """Against the package's own grid: each thing that is told of is where it is said to be."""
    environment = MiniGridConfig(id="MiniGrid-DoorKey-8x8-v0").make()
    environment.reset_many(list(range(10)))
    for slot in range(10):
        env = environment._slots[slot].episode._env
        said = environment._slots[slot].episode.observation()
        key = next((x, y) for x in range(8) for y in range(8) if getattr(env.grid.get(x, y), "type", "") == "key")
        if not env.in_view(*key) or not env.agent_sees(*key):
            assert " key " not in said
            continue
        ahead = sum((key[axis] - env.agent_pos[axis]) * env.dir_vec[axis] for axis in (0, 1))
        right = sum((key[axis] - env.agent_pos[axis]) * env.right_vec[axis] for axis in (0, 1))
        place = [f"{ahead} ahead"] * bool(ahead > 0) + [f"{abs(right)} {'right' if right > 0 else 'left'}"] * bool(
            right != 0
        )
        assert "a yellow key " + " and ".join(place) in said


def test_a_known_episode():
    check_environment(MiniGridConfig())
    environment = MiniGridConfig(id="BabyAI-GoToObj-v0").make()
    (start,) = environment.reset_many([0])
    assert start.actions == tuple(ACTIONS.values())
    assert start.goal.endswith("Your mission: go to the green box.")
    assert start.observation == "You see a green box 2 left.\nWalls: 6 ahead, 1 right."
    step = environment.step_many({0: "turn left"})[0]
    assert step.observation == "You see a green box 2 ahead.\nWalls: 6 ahead, 1 left." and not step.done
    assert not environment.step_many({0: "jump"})[0].legal
    step = environment.step_many({0: "go forward"})[0]
    assert (step.success, step.reward, step.stop_reason) == (True, 1.0, StopReason.success)
    environment.close()


@pytest.mark.parametrize(
    "name",
    ["BabyAI-GoToObj-v0", "BabyAI-GoToLocal-v0", "BabyAI-PickupLoc-v0", "BabyAI-OpenDoor-v0", "BabyAI-UnlockLocal-v0"],
)
def test_the_bot_solves_what_it_plays(name):
    environment = MiniGridConfig(id=name, max_turns=200, reward="native").make()
    seeds = [*range(5), *range(1_000_000, 1_000_005)]
    live = dict(enumerate(environment.reset_many(seeds)))
    won = 0
    while live:
        steps = environment.step_many({slot: environment.oracle(slot) for slot in live})
        won += sum(step.success and 0 < step.reward < 1 for step in steps.values())
        live = {slot: step for slot, step in steps.items() if not step.done}
    assert won == len(seeds)


def test_the_bot_goes_on_after_moves_that_it_did_not_see():
    environment = MiniGridConfig(max_turns=200).make()
    environment.reset_many([4])
    first = environment.oracle(0)
    assert environment.oracle(0) == first, "asked twice it says the same"
    for action in ("turn left", "turn left", "go forward"):
        environment.step_many({0: action})
    step = None
    while step is None or not step.done:
        step = environment.step_many({0: environment.oracle(0)})[0]
    assert step.success


def test_levels_are_held_out_by_content():
    environment = MiniGridConfig(id="MiniGrid-DoorKey-6x6-v0").make()
    sides = []
    for first in (0, 1_000_000):
        environment.reset_many(range(first, first + 40))
        sides.append({environment.content(slot) for slot in range(40)})
    assert len(sides[1]) == 40 and not sides[0] & sides[1]
    assert environment.oracle(0) is None, "MiniGrid's own ids have no bot"


def test_what_is_refused():
    with pytest.raises(BadInput, match="unknown MiniGrid id") as refused:
        MiniGridConfig(id="BabyAI-GoToObjj-v0").make()
    assert "BabyAI-GoToObj-v0" in str(refused.value)
    with pytest.raises(BadInput, match="finds no level"):
        check_environment(MiniGridConfig(id="MiniGrid-Empty-5x5-v0"))
    check_environment(MiniGridConfig(id="MiniGrid-Empty-5x5-v0", held_out_from=None))
