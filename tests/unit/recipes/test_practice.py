"""A warm start in practice games: it shows how to play and how to write, in games whose rules no task has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crl.config import Method
from crl.config.load import load_experiment
from crl.envs.shrines import NAMES, PRACTICE_NAMES, ShrinesConfig, hidden_rule, read_claim, tidied
from crl.errors import BadInput
from crl.records import Distillation, Episode, Evaluation, Generation, Metric, Operation, Sample, Turn
from crl.run.directory import RunDirectory
from tests.learning.harness import rows, train

ROOT = Path(__file__).parents[3]
ACTOR, EXTRACTOR, MERGES = 24, 40, 11
START = {"actor_episodes": ACTOR, "extractor_episodes": EXTRACTOR, "learning_rate": 1e-3}
CHANGES = {
    "name": "practiced",
    "method.families": [
        {
            "repeat": 2, "name": "shrine{index}", "groups": 1,
            "environment": {"kind": "shrines", "shrine": "{index}", "world": 1, "things": 24},
            "evaluation_seeds": {"start": 1_000_000, "count": 4},
        }
    ],
    "method.prompts": "shrines",
    "method.roles.actor.sampling": {"max_new_tokens": 12, "constrain": "actions"},
    "method.recipe.warm_start": {**START, "demonstrations": "practice", "extractor_merges": MERGES},
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return train(load_experiment(ROOT / "conf/tiny.yaml", CHANGES), tmp_path_factory.mktemp("practiced"), 0)


def played(run: RunDirectory, stage: str) -> tuple[list[Episode], dict[str, list[Turn]]]:
    turns: dict[str, list[Turn]] = {}
    for turn in rows(run, Turn, stage, [0]):
        turns.setdefault(turn.episode_id, []).append(turn)
    return rows(run, Episode, stage, [0]), turns


@pytest.mark.slow
def test_the_actor_sees_games_that_are_won_some_under_notes_and_none_of_a_task(run: RunDirectory) -> None:
    episodes, turns = played(run, "warm_start_actor")
    assert len(episodes) == ACTOR and all(episode.success for episode in episodes)
    guided = [episode for episode in episodes if episode.guided]
    assert ACTOR / 2 < len(guided) < ACTOR
    rules = {hidden_rule(family.environment) for family in run.method.families}  # type: ignore[arg-type]
    for episode in episodes:
        rule = tuple(turn.action or "" for turn in turns[episode.episode_id])
        assert rule not in rules
        name = re.search(r"the (\w+) shrine", episode.goal)
        assert name and name.group(1) in PRACTICE_NAMES and name.group(1) not in NAMES
        claim = read_claim(episode.experience or "")
        assert not episode.guided or (claim is not None and claim.share_right(rule) == 1.0), "its experience is true"
    assert len(rows(run, Sample, "warm_start_actor", [0])) == ACTOR


def test_the_extractor_sees_every_outcome_and_true_lessons_in_form(run: RunDirectory) -> None:
    episodes, turns = played(run, "warm_start_extractor")
    assert len(episodes) == EXTRACTOR and 5 < sum(episode.success for episode in episodes) < EXTRACTOR - 5
    outputs = [row for row in rows(run, Distillation, "warm_start_extractor", [0]) if row.kind == "distill"]
    assert all(row.reason_code == "ok" for row in outputs)
    free = [episode for episode in episodes if not episode.guided]
    assert EXTRACTOR / 3 < len(free) < EXTRACTOR, "half are free, and a few of the others have nothing to be guided by"
    assert any(episode.turns > 1 and not episode.success for episode in free), "lost late, which is hard to write about"
    assert {row.verdict for row in outputs} == {"add", "update", "return"}
    written = rows(run, Operation, "warm_start_extractor", [0])
    texts = {row.episode_ids[0]: row.text for row in written if row.kind in ("add", "update")}
    for episode in episodes:
        if episode.episode_id not in texts:
            continue
        offered = [turn.action or "" for turn in turns[episode.episode_id]]
        taken = offered if episode.success else offered[:-1]
        claim = read_claim(texts[episode.episode_id])
        assert claim is not None and list(claim.taken) == taken
        assert episode.success or offered[-1] in claim.refused
    metrics = {row.name: row.value for row in rows(run, Metric, "warm_start_extractor", [0])}
    assert metrics["demonstrations"] == metrics["demonstrations_in_form"] == EXTRACTOR + MERGES


def test_the_extractor_sees_lists_merged_into_shorter_ones_that_say_as_much(run: RunDirectory) -> None:
    outputs = [row for row in rows(run, Generation, "warm_start_extractor", [0]) if row.kind == "merge"]
    learned = {row.generation_id for row in rows(run, Sample, "warm_start_extractor", [0])}
    assert len(outputs) == MERGES and {row.generation_id for row in outputs} <= learned
    rows_about = {row.distillation_id: row for row in rows(run, Distillation, "warm_start_extractor", [0])}
    merged = [row for row in rows(run, Operation, "warm_start_extractor", [0]) if row.kind == "merge"]
    assert merged and all(len(row.parents) > 1 for row in merged)
    for row in merged:
        assert set(row.parents) <= set(rows_about[row.distillation_id].source_entry_ids)
        assert read_claim(row.text or "") is not None


@pytest.mark.parametrize(
    ("experiences", "expected"),
    [
        (["The old shrine refuses the coin first.", "The old shrine refuses the bell first."],
         [("The old shrine refuses the coin and the bell first.", (0, 1))]),
        (["Offer the old shrine the cup.", "Offer the old shrine the cup, then the bell.",
          "Offer the old shrine the cup."],
         [("Offer the old shrine the cup, then the bell.", (0, 1, 2))]),
        (["The old shrine refuses the coin first.", "Offer the old shrine the cup. It refuses the bell second."],
         [("Offer the old shrine the cup. It refuses the bell second.", (0, 1))]),
        (["Offer the old shrine the cup.", "Offer the old shrine the bell."],
         [("Offer the old shrine the cup.", (0,)), ("Offer the old shrine the bell.", (1,))]),
        (["Be kind.", "Offer the old shrine the cup.", "Be kind."],
         [("Be kind.", (0,)), ("Offer the old shrine the cup.", (1,)), ("Be kind.", (2,))]),
        ([f"The old shrine refuses the {thing} first." for thing in ("bell", "coin", "book", "ring", "cup")],
         [("The old shrine refuses the bell and the coin and the book and the ring first.", (0, 1, 2, 3, 4))]),
    ],
)  # fmt: skip
def test_a_shorter_list_stands_for_every_experience_once(
    experiences: list[str], expected: list[tuple[str, tuple[int, ...]]]
) -> None:
    found = tidied(experiences)
    assert found == expected
    assert sorted(place for _, places in found for place in places) == list(range(len(experiences)))


def test_held_out_games_are_played_at_the_shrines_of_the_task(run: RunDirectory) -> None:
    conditions = {row.condition for row in rows(run, Evaluation, "evaluate", [0])}
    assert conditions == {"without_bank", "random"}
    config = run.method.families[0].environment
    assert isinstance(config, ShrinesConfig) and not config.practice


def test_demonstrations_that_would_tell_the_answer_or_cannot_be_had_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="hidden rule") as caught:
        told("oracle")
    assert caught.value.where == "method.recipe.warm_start.demonstrations"
    told("practice")
    no_practice = {**START, "demonstrations": "practice"}
    with pytest.raises(BadInput, match="no practice games"):
        load_experiment(ROOT / "conf/tiny.yaml", {"method.recipe.warm_start": no_practice, "name": "lake"})


def told(demonstrations: str) -> Method:
    warm_start = {**START, "demonstrations": demonstrations}
    return load_experiment(ROOT / "conf/tiny.yaml", {**CHANGES, "method.recipe.warm_start": warm_start}).method
