"""Gymnasium: text that is shown or drawn, names and written actions, and what is refused."""

from __future__ import annotations

import random

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from pydantic import ValidationError

from crl.config import FamilyConfig
from crl.envs import check_environment, make_environment
from crl.errors import BadInput
from crl.protocols import FreeText, StopReason
from crl.worlds.bridges.gymnasium import GymnasiumConfig, _Games

LETTERS = "abcdefghijklmnopqrstuvwxyz "


class Echo(gymnasium.Env):
    """Say the word that was drawn. `observed` and `acted` choose its spaces, `source` where it draws from."""

    metadata = {"render_modes": []}  # noqa: RUF012
    WORDS = ("red", "green", "blue")

    def __init__(self, observed="text", acted="text", source="own", mask=False, meanings=False) -> None:
        text = spaces.Text(40, charset=LETTERS)
        self.observation_space = {
            "text": text,
            "dict": spaces.Dict({"mission": text, "view": text, "left": spaces.Discrete(9), "raw": spaces.Box(0, 1)}),
            "box": spaces.Box(0, 1),
        }[observed]
        self.action_space = {
            "text": spaces.Text(10, charset=LETTERS),
            "discrete": spaces.Discrete(3),
            "from one": spaces.Discrete(3, start=1),
            "box": spaces.Box(0, 1),
        }[acted]
        self.observed, self.acted, self.source, self.mask, self.turns = observed, acted, source, mask, 0
        if meanings:
            self.get_action_meanings = lambda: list(self.WORDS)

    def _number(self) -> int:
        if self.source == "python":
            return random.randrange(3)
        if self.source == "numpy" or (self.source == "numpy, late" and self.turns > 1):
            return int(np.random.randint(3))
        return int(self.np_random.integers(3))

    def _seen(self):
        word = self.WORDS[self.hidden]
        if self.observed == "dict":
            return {"mission": "say the word", "view": word, "left": 9 - self.turns, "raw": np.zeros(1)}
        return word if self.observed == "text" else np.zeros(1)

    def _info(self):
        return {"action_mask": np.array([1, 0, 1])} if self.mask else {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.hidden, self.turns = self._number(), 0
        return self._seen(), self._info()

    def step(self, action):
        self.turns += 1
        first = getattr(self.action_space, "start", 0)
        said = action if isinstance(action, str) else self.WORDS[int(action) - first]
        assert not self.mask or said != "green", "masked"
        if said == "crash":
            raise OSError("the cable is out")
        right = said == self.WORDS[self.hidden]
        self.hidden = self._number()
        return self._seen(), float(right), right, self.turns >= 4, self._info()


@pytest.fixture(autouse=True)
def registered():
    gymnasium.register("Echo-v0", entry_point=Echo, disable_env_checker=True)
    yield
    gymnasium.registry.pop("Echo-v0")


def config(**options) -> GymnasiumConfig:
    more = {key: options.pop(key) for key in list(options) if key in GymnasiumConfig.model_fields}
    return GymnasiumConfig(id="Echo-v0", arguments=options, **more)


def test_text_in_and_text_out():
    check_environment(config())
    wave = config(form="one word").make()
    (start,) = wave.reset_many([7])
    assert start.goal == "Solve the task." and start.observation in Echo.WORDS
    assert start.actions == FreeText("one word")
    assert wave.reset_many([7, 7]) == [start, start]
    wrong = wave.step_many({0: "THE WORD!", 1: None})
    assert not wrong[0].legal and "one word" in wrong[0].feedback and not wrong[1].legal
    right = wave.step_many({0: start.observation})[0]
    assert (right.done, right.success, right.reward, right.stop_reason) == (True, True, 1.0, StopReason.success)
    assert wave.oracle(1) is None
    wave.close()


def test_an_environment_that_raises_costs_its_own_episode():
    wave = config().make()
    first, second = wave.reset_many([1, 2])
    steps = wave.step_many({0: "crash", 1: second.observation})
    assert steps[0].error == "environment_OSError" and steps[1].success
    assert wave.reset_many([1, 2]) == [first, second]


def test_fields_of_a_dict():
    wave = config(observed="dict", acted="discrete", action_names=("say red", "say green", "say blue")).make()
    (start,) = wave.reset_many([3])
    word, left = start.observation.splitlines()
    assert start.goal == "say the word" and word in Echo.WORDS and left == "left: 9"
    assert start.actions == ("say red", "say green", "say blue")
    assert wave.step_many({0: f"say {word}"})[0].success


def test_names_of_actions():
    def names(**options):
        return config(**options).make().reset_many([0])[0].actions

    assert names(acted="discrete") == ("0", "1", "2") and names(acted="from one") == ("1", "2", "3")
    assert names(acted="discrete", meanings=True) == Echo.WORDS
    assert names(acted="discrete", meanings=True, mask=True) == ("red", "blue")
    wave = config(acted="from one", action_names=Echo.WORDS).make()
    (start,) = wave.reset_many([5])
    assert wave.step_many({0: start.observation})[0].success, "names mean their numbers"


def test_the_id_s_own_limit_is_one_of_turns():
    wave = config(acted="discrete", action_names=Echo.WORDS).make()
    (start,) = wave.reset_many([0])
    seen, step = start.observation, None
    for _ in range(4):
        step = wave.step_many({0: next(word for word in Echo.WORDS if word != seen)})[0]
        seen = step.observation.splitlines()[0]
    assert step is not None and step.done and step.stop_reason is StopReason.turn_limit and not step.success


@pytest.mark.parametrize("source", ["python", "numpy"])
def test_global_generators_are_found_out_and_each_episode_gets_its_own(source):
    with pytest.raises(BadInput, match="global random generator") as refused:
        config(source=source).make()
    assert "global_random: true" in str(refused.value)
    check_environment(config(source=source, global_random=True))
    wave = config(source=source, global_random=True).make()
    starts = wave.reset_many(range(20))
    assert len({start.observation for start in starts}) == 3
    assert wave.reset_many([*range(19, -1, -1)]) == starts[::-1]


def test_global_draws_are_found_out_by_actions_that_are_open():
    with pytest.raises(BadInput, match="global random generator"):
        config(acted="discrete", source="numpy, late", mask=True).make()


def test_a_constructor_that_draws_takes_nothing_from_the_episode_that_comes_first(monkeypatch):
    plain = _Games._screen

    def drawing(self):
        random.random()
        return plain(self)

    monkeypatch.setattr(_Games, "_screen", drawing)
    made = config(source="python", global_random=True)
    for seed in range(8):
        alone, first_of_two = made.make().reset_many([seed])[0], made.make().reset_many([seed, seed])
        assert [alone, alone] == first_of_two, "whichever slot it is in"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"observed": "box"}, "shows no text"),
        ({"acted": "box"}, "takes actions of Box"),
        ({"acted": "discrete", "action_names": ("a", "b")}, "holds 2 names"),
        ({"unknown": 1}, "cannot be made: TypeError"),
    ],
)
def test_what_is_no_text_game_is_refused(options, words):
    with pytest.raises(BadInput, match=words) as refused:
        config(**options).make()
    assert refused.value.expected and refused.value.where and refused.value.next_step


def test_unknown_ids_modules_and_settings():
    with pytest.raises(BadInput, match="unknown Gymnasium id") as refused:
        GymnasiumConfig(id="FrozenLak-v1").make()
    assert "FrozenLake-v1" in str(refused.value)
    with pytest.raises(BadInput, match="no_module_of_this_name cannot be imported"):
        GymnasiumConfig(id="no_module_of_this_name:Echo-v0").make()
    with pytest.raises(ValidationError, match="does not say which level"):
        GymnasiumConfig(id="Echo-v0", held_out_from=5)
    with pytest.raises(ValidationError, match="have to differ"):
        GymnasiumConfig(id="Echo-v0", action_names=("a", "a"))


def test_what_draws_itself_as_text_is_read():
    family = FamilyConfig.model_validate(
        {
            "name": "lake",
            "environment": {
                "kind": "gymnasium",
                "id": "FrozenLake-v1",
                "arguments": {"is_slippery": False},
                "action_names": ["left", "down", "right", "up"],
            },
            "workers": 2,
        }
    )
    environment = make_environment(family)
    start = environment.reset_many([0, 1])[1]
    assert start.observation == "[S]FFF\nFHFH\nFFFH\nHFFG"
    steps = [environment.step_many({1: name})[1] for name in ("down", "down", "right", "right", "down", "right")]
    assert steps[0].observation == "  (Down)\nSFFF\n[F]HFH\nFFFH\nHFFG"
    assert steps[-1].success and steps[-1].observation.endswith("HFF[G]\nThe goal is reached.")
    environment.close()
