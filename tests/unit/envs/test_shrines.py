"""Shrines: rules that hold in every game, what is held out, experiences that can be checked, and lessons that are
true."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.config.load import load_experiment
from crl.envs import check_environment
from crl.envs.shrines import (
    NAMES,
    PRACTICE_NAMES,
    THINGS,
    Claim,
    ShrinesConfig,
    ShrinesEnvironment,
    games,
    hidden_rule,
    lesson_of,
    read_claim,
    write_claim,
)
from crl.errors import BadInput
from crl.protocols import KnowsRule, KnowsTruth, Lesson, StopReason, Teacher
from crl.records import Episode, Turn
from tests.marks import sampled

CONFIG = ShrinesConfig(shrine=2, world=7, things=24)
HELD_OUT = 1_000_000
ROOT = Path(__file__).parents[3]


def played(
    environment: ShrinesEnvironment, slot: int, offered: list[str], experience: str | None
) -> tuple[Episode, list[Turn]]:
    """The record of a game in which these things were offered; `environment` was just reset."""
    game = environment._slots[slot].game
    turns, step = [], None
    for number, action in enumerate(offered):
        step = environment.step_many({slot: action})[slot]
        turns.append(
            Turn(
                episode_id="e", turn=number, observation="o", output=action, action=action, valid=step.legal,
                feedback=None, generation_id="g", first_token=0, last_token=1, stop_reason="end_of_turn",
            )
        )  # fmt: skip
        if step.done:
            break
    assert step is not None and step.stop_reason is not None
    shown = [] if experience is None else ["x"]
    episode = Episode(
        episode_id="e", round=1, family="f", group=0, member=0, environment_seed=0, guided=experience is not None,
        entry_ids=shown, content_digests=shown, experiences=[] if experience is None else [experience],
        goal=f"Open the {game.name} shrine: offer 3",
        success=step.success, reward=step.reward, turns=len(turns), invalid_actions=0, tokens_read=0, tokens_sampled=0,
        stop_reason=step.stop_reason.value, last_observation=step.observation, error=None,
        generation_ids=["g"],
    )  # fmt: skip
    return episode, turns


def test_the_oracle_opens_the_shrine_in_as_many_moves_as_the_rule_has_steps() -> None:
    environment = ShrinesEnvironment(CONFIG)
    for start, seeds in ((0, range(50)), (HELD_OUT, range(HELD_OUT, HELD_OUT + 50))):
        starts = environment.reset_many(list(seeds))
        assert start >= 0 and len({each.goal for each in starts}) == 1, "a wave shares its goal"
        for slot in range(50):
            moves = []
            while (move := environment.oracle(slot)) is not None:
                step = environment.step_many({slot: move})[slot]
                moves.append(move)
            assert tuple(moves) == hidden_rule(CONFIG) and step.success and step.reward == 1.0


def test_a_wrong_offering_ends_the_game_and_a_word_that_is_no_thing_spends_a_turn() -> None:
    environment = ShrinesEnvironment(CONFIG)
    [start] = environment.reset_many([3])
    first = hidden_rule(CONFIG)[0]
    wrong = next(thing for thing in start.actions if thing != first)
    step = environment.step_many({0: wrong})[0]
    assert (step.done, step.success, step.stop_reason) == (True, False, StopReason.failure)
    assert wrong in step.observation and "refuses" in step.observation
    with pytest.raises(RuntimeError, match="slot 0 is done"):
        environment.step_many({0: wrong})
    environment.reset_many([3])
    for turn in range(CONFIG.max_turns):
        step = environment.step_many({0: None if turn % 2 else "spoon"})[0]
        assert not step.legal and step.feedback
    assert (step.done, step.stop_reason) == (True, StopReason.turn_limit)
    environment.reset_many([3])
    step = environment.step_many({0: first})[0]
    assert step.legal and first not in step.actions and len(step.actions) == CONFIG.choices - 1


def test_the_last_observation_says_what_the_last_offering_did() -> None:
    environment = ShrinesEnvironment(CONFIG.model_copy(update={"max_turns": 3}))
    environment.reset_many([3])
    for action in (None, hidden_rule(CONFIG)[0], hidden_rule(CONFIG)[1]):
        step = environment.step_many({0: action})[0]
    assert step.stop_reason is StopReason.turn_limit
    assert step.observation.startswith(f"The shrine takes the {hidden_rule(CONFIG)[1]}. Here are: ")
    assert step.observation.endswith("No turns are left.")


def test_a_random_player_opens_one_shrine_of_24() -> None:
    environment, random, wins, plays = ShrinesEnvironment(CONFIG), np.random.default_rng(3), 0, 4800
    starts = environment.reset_many(range(plays))
    legal = {slot: start.actions for slot, start in enumerate(starts)}
    while legal:
        steps = environment.step_many({slot: str(random.choice(actions)) for slot, actions in legal.items()})
        wins += sum(step.success for step in steps.values())
        legal = {slot: step.actions for slot, step in steps.items() if not step.done}
    assert abs(wins / plays - 1 / 24) < 4 * (1 / 24 / plays) ** 0.5


def test_equal_seeds_are_equal_games_and_shrines_of_a_world_differ_in_what_they_hide() -> None:
    first, second = (ShrinesEnvironment(CONFIG).reset_many(range(20)) for _ in range(2))
    assert first == second and len({start.observation for start in first}) > 10
    assert len({hidden_rule(CONFIG.model_copy(update={"shrine": shrine})) for shrine in range(16)}) > 12
    assert len({hidden_rule(CONFIG.model_copy(update={"world": world})) for world in range(30)}) > 25


def test_held_out_sets_of_things_are_never_trained_on_in_any_world() -> None:
    trained, held_out = set(), set()
    for shrine in range(4):
        for world in (1, 2, 3):
            config = CONFIG.model_copy(update={"shrine": shrine, "world": world})
            drawn = games(config)
            trained |= {drawn.of(seed).content for seed in range(400)}
            held_out |= {drawn.of(HELD_OUT + seed).content for seed in range(400)}
    assert len(trained) > 100 and len(held_out) > 30
    assert not trained & held_out


def test_the_games_that_the_quickstart_holds_out_are_all_different() -> None:
    for family in load_experiment(ROOT / "conf/quickstart.yaml").method.families:
        assert isinstance(family.environment, ShrinesConfig)
        drawn, seeds = games(family.environment), family.evaluation_seeds
        assert len({drawn.of(seeds.start + index).content for index in range(seeds.count)}) == seeds.count


def test_practice_teaches_no_rule_of_a_world_and_no_name_of_a_shrine() -> None:
    practice = CONFIG.model_copy(update={"practice": True})
    drawn = games(practice)
    practiced = [drawn.of(seed) for seed in range(2000)]
    worlds = {
        hidden_rule(CONFIG.model_copy(update={"shrine": shrine, "world": world}))
        for shrine in range(16) for world in range(200)
    }  # fmt: skip
    assert len(worlds) > 2000 and not worlds & {game.rule for game in practiced}
    assert {game.name for game in practiced} == set(PRACTICE_NAMES) and not set(PRACTICE_NAMES) & set(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize(("things", "worlds"), sampled([(4, 4), (5, 20)], 2))
def test_too_few_things_are_refused_where_a_side_would_be_empty(things: int, worlds: int) -> None:
    refused = 0
    for world in range(worlds):
        config = ShrinesConfig(world=world, things=things, choices=4)
        try:
            check_environment(config)
        except BadInput as error:
            refused += 1
            assert "finds no level" in error.found or "no rule" in error.found
    assert refused > 0


def test_it_is_a_judge_and_a_teacher() -> None:
    environment = ShrinesEnvironment(CONFIG)
    assert isinstance(environment, KnowsTruth) and isinstance(environment, Teacher)
    name, rule = NAMES[CONFIG.shrine], hidden_rule(CONFIG)
    other = next(thing for thing in THINGS if thing not in rule)
    assert environment.truth(write_claim(name, Claim(rule)) or "") == 1.0
    assert environment.truth(write_claim(name, Claim((rule[0], other, rule[2]))) or "") == pytest.approx(2 / 3)
    assert environment.truth(write_claim(name, Claim(rule[:1], (rule[1],))) or "") == 0.5, "it refuses what is right"
    assert environment.truth(write_claim(name, Claim((), (other,))) or "") == 1.0
    assert environment.truth("Be careful with shrines.") is None
    assert environment.practice().truth(write_claim(name, Claim(rule)) or "") is None


CLAIMS = st.tuples(
    st.lists(st.sampled_from(THINGS), max_size=4, unique=True),
    st.lists(st.sampled_from(THINGS), max_size=2, unique=True),
).map(lambda parts: Claim(tuple(parts[0]), tuple(thing for thing in parts[1] if thing not in parts[0])))


@settings(deadline=None)
@given(CLAIMS)
def test_a_claim_is_read_as_it_was_written(claim: Claim) -> None:
    text = write_claim("red", claim)
    assert (text is None) == (not claim.taken and not claim.refused)
    assert text is None or read_claim(text) == claim


@pytest.mark.parametrize(
    "text",
    [
        "Offer the red shrine the coin. It refuses the horn and the horn. It refuses the horn and the horn.",
        "Offer the red shrine the coin, then the wine. It refuses the horn first.",
        "The red shrine refuses the mask and the mask, then the mask.",
        "It refuses the shell first.",
        "Take the coin.",
    ],
)
def test_a_note_that_says_anything_else_makes_no_claim_that_can_be_checked(text: str) -> None:
    assert read_claim(text) is None


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_lessons_are_true_of_the_rule_whatever_was_played_and_whatever_note_guided_it(seed: int, random) -> None:
    environment = ShrinesEnvironment(CONFIG).practice()
    [start] = environment.reset_many([seed])
    rule = environment._slots[0].game.rule
    generator = np.random.default_rng(seed)
    experience = environment.hint(0, generator, true=True)
    assert experience is None or (
        read_claim(experience) is not None and read_claim(experience).share_right(rule) == 1.0
    )
    skill = random.random()
    offered = []
    for thing in rule:
        left = [each for each in start.actions if each not in offered]
        offered.append(thing if random.random() < skill else random.choice(left))
        if offered[-1] != thing:
            break
    episode, turns = played(environment, 0, offered, experience)
    lesson = lesson_of(episode, turns)
    if lesson.kind == "return":
        assert episode.guided and lesson.text is None
        return
    assert lesson.kind == ("update" if episode.guided else "add")
    claim = read_claim(lesson.text or "")
    assert claim is not None and claim.share_right(rule) == 1.0, (lesson, rule)
    assert not episode.success or claim.taken == rule


def game(rule: tuple[str, ...], offered: list[str], experience: str | None) -> Lesson:
    environment = ShrinesEnvironment(CONFIG)
    environment.reset_many([0])
    slot = environment._slots[0]
    slot.game = dataclasses.replace(slot.game, name="red", rule=rule, things=("bell", "cup", "coin", "rose"))
    slot.left = list(slot.game.things)
    return lesson_of(*played(environment, 0, offered, experience))


RULE = ("bell", "cup", "coin")
WHOLE = "Offer the red shrine the bell, then the cup, then the coin."


@pytest.mark.parametrize(
    ("offered", "experience", "expected"),
    [
        (["bell", "cup", "coin"], None, Lesson("add", WHOLE)),
        (["bell", "cup", "coin"], WHOLE, Lesson("return")),
        (["bell", "cup", "coin"], "Offer the red shrine the bell.", Lesson("update", WHOLE)),
        (["rose"], None, Lesson("add", "The red shrine refuses the rose first.")),
        (
            ["bell", "rose"],
            "Offer the red shrine the bell.",
            Lesson("update", "Offer the red shrine the bell. It refuses the rose second."),
        ),
        (
            ["cup"],
            "The red shrine refuses the rose first.",
            Lesson("update", "The red shrine refuses the cup first."),
        ),
        (["rose"], "The red shrine refuses the rose first.", Lesson("return")),
        (["rose"], WHOLE, Lesson("return")),
        (
            ["bell", "rose"],
            "Offer the red shrine the bell, then the rose, then the coin.",
            Lesson("update", "Offer the red shrine the bell. It refuses the rose second."),
        ),
    ],
    ids=[
        "won",
        "known",
        "more",
        "first loss",
        "one step further",
        "another refusal",
        "again",
        "strayed",
        "wrong experience",
    ],
)
def test_what_a_game_teaches(offered: list[str], experience: str | None, expected: Lesson) -> None:
    assert game(RULE, offered, experience) == expected


def test_a_whole_rule_names_every_thing_and_says_nothing_else() -> None:
    environment, rule = ShrinesEnvironment(CONFIG), tuple(hidden_rule(CONFIG))
    said = [write_claim(NAMES[CONFIG.shrine], Claim(rule[:count])) for count in range(1, len(rule) + 1)]
    assert isinstance(environment, KnowsRule)
    assert [environment.whole(text) for text in said if text] == [False] * (len(rule) - 1) + [True]
    refusing = write_claim(NAMES[CONFIG.shrine], Claim((), (next(each for each in THINGS if each != rule[0]),)))
    assert environment.truth(refusing) == 1.0 and not environment.whole(refusing), "right, and only a part"
