"""What docs/extending.md shows runs as it stands there, registered as a package would register it.

Its environment and its engine are `examples/guess.py` and `examples/reread.py`.
"""

from __future__ import annotations

import random
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from crl.config import FamilyConfig, RoleConfig, SamplingConfig
from crl.envs import check_environment, make_environment
from crl.policies import load_policy, resolve_model
from crl.records import Task
from crl.rollout.play import EpisodeSlot, PlayedEpisode, play_wave
from tests.unit.rollout.fakes import ScriptedPolicy, method

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
MODULES = ("guess", "reread")
BLOCKS = [
    (block["name"], block["body"])
    for block in re.finditer(r'^```\w+ title="(?P<name>[^"]+)"\n(?P<body>.*?)^```', PAGE, re.MULTILINE | re.DOTALL)
]


def block(name: str) -> str:
    return next(body for found, body in BLOCKS if found == name)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules of the page on the path, and their entry points as installing a package would record them."""
    points: dict[str, dict[str, str]] = {"crl.environments": {"guess": "guess:GuessConfig"}}
    for name in MODULES:
        assert f"`examples/{name}.py`" in PAGE
        shutil.copy(ROOT / "examples" / f"{name}.py", tmp_path)
    points |= tomllib.loads(block("pyproject.toml"))["project"]["entry-points"]
    record = tmp_path / "outside-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    sections = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in named.items()) for group, named in points.items()]
    (record / "entry_points.txt").write_text("\n".join(sections))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def played(family: FamilyConfig, policy: Any, seeds: list[int], sampling: SamplingConfig) -> list[PlayedEpisode]:
    """One group of the family, played as a run would play it."""
    environment = make_environment(family)
    starts = environment.reset_many(seeds)
    slots = [
        EpisodeSlot(
            Task(
                episode_id=f"e{member}", round=1, family=family.name, group=0, member=member, environment_seed=seed,
                stream="free", goal=start.goal, first_observation=start.observation, query="",
            )
        )
        for member, (seed, start) in enumerate(zip(seeds, starts, strict=True))
    ]  # fmt: skip
    return play_wave(
        policy, environment, slots, method=method(), seed_of=lambda name: np.random.SeedSequence(list(name.encode())),
        sampling=sampling, weights_digest="w", stage="collect",
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["guess", "guess:GuessConfig"])
def test_the_environment_plays_with_text_that_it_parses_and_rewards_between_0_and_1(installed: None, kind: str) -> None:
    data = yaml.safe_load(block("family.yaml"))
    data["environment"]["kind"] = kind
    family = FamilyConfig.model_validate(data)
    check_environment(family.environment)
    assert FamilyConfig.model_validate(family.model_dump(mode="json")) == family
    hidden = random.Random(7).randint(1, 50)
    said = ["I would start low: guess[1]", "no idea", f"guess[{hidden}]"]
    near, nowhere = played(
        family,
        ScriptedPolicy(lambda row, turn: (said[turn] if row == 0 else "guess[1]", True)),
        [7, 8],
        SamplingConfig(max_new_tokens=64),
    )
    assert near.episode.success and near.episode.reward == 1.0 and near.episode.stop_reason == "success"
    assert [turn.action for turn in near.turns] == said, "the text reaches the environment as it was written"
    assert [turn.valid for turn in near.turns] == [True, False, True]
    assert [turn.feedback for turn in near.turns] == ["Too low.", "That is no guess.", "Found!"]
    assert near.feedback == "Found!"
    assert not nowhere.episode.success and nowhere.episode.stop_reason == "turn_limit"
    assert nowhere.episode.reward == 1.0 - (random.Random(8).randint(1, 50) - 1) / 50


@pytest.mark.parametrize("said", ["no idea", f"guess[{'9' * 400}]", f"guess[{'9' * 5000}]"])
def test_what_is_no_guess_is_worth_nothing(installed: None, said: str) -> None:
    family = FamilyConfig.model_validate(yaml.safe_load(block("family.yaml")))
    never, stuck = played(
        family,
        ScriptedPolicy(lambda row, turn: ("guess[1]" if row and not turn else said, True)),
        [7, 8],
        SamplingConfig(max_new_tokens=64),
    )
    assert (never.episode.reward, never.episode.invalid_actions, never.episode.error) == (0.0, 5, None)
    assert (stuck.episode.invalid_actions, stuck.episode.reward) == (
        4,
        1.0 - (random.Random(8).randint(1, 50) - 1) / 50,
    )


def test_the_engine_draws_what_the_built_in_one_draws(installed: None) -> None:
    role = RoleConfig.model_validate(yaml.safe_load(block("actor.yaml")))
    assert role.model_dump()["engine"] == {"kind": "reread"}
    family = FamilyConfig.model_validate(yaml.safe_load(block("family.yaml")))
    path = resolve_model("tiny").path
    sampling = SamplingConfig(max_new_tokens=6)
    rows = []
    for each in (role, RoleConfig(model="tiny")):
        policy = load_policy(each, path, None, threads=1)
        rows.append([one.generations[0] for one in played(family, policy, [7, 8], sampling)])
        assert policy.take_weights(path)
        policy.close()
    assert type(policy).__name__ == "LanguagePolicy"
    for one, other in zip(*rows, strict=True):
        assert one.token_ids == other.token_ids and one.loss_mask == other.loss_mask
        assert np.allclose(one.logprobs, other.logprobs, atol=1e-4)


EXCERPTS = [
    pytest.param(found["file"], found["body"], id=f"{found['file']}-{place}")
    for place, found in enumerate(
        re.finditer(r'^```\w+ excerpt="(?P<file>[^"]+)"\n(?P<body>.*?)^```', PAGE, re.MULTILINE | re.DOTALL)
    )
]


@pytest.mark.parametrize(("file", "body"), EXCERPTS)
def test_an_excerpt_is_what_the_file_holds(file: str, body: str) -> None:
    """The package itself is installed and trained in tests/outside."""
    assert body in (ROOT / file).read_text(encoding="utf-8")


def test_every_door_is_walked_through() -> None:
    assert len(EXCERPTS) >= 6
    shown = {str(excerpt.values[0]) for excerpt in EXCERPTS}
    assert {f"tests/outside/crl_outside/{name}.py" for name in ("config", "recipe", "objective")} <= shown


def test_the_package_from_outside_builds_its_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page walks through fits the library as it is; tests/outside installs and trains it."""
    from crl.config.load import load_experiment
    from crl.rounds.recipe import recipe_of

    root = Path(__file__).parents[1] / "outside"
    monkeypatch.syspath_prepend(str(root))
    kinds = {
        "method.recipe.kind": "crl_outside.config:ReviewedConfig",
        "method.families.0.environment.kind": "crl_outside.world:LengthsConfig",
    }
    method = load_experiment(root / "experiment.yaml", kinds).method
    names = [stage.name for stage in recipe_of(method).stages]
    assert names == ["plan", "collect", "review", "credit", "update_actor", "evaluate"]
