"""Lessons about NetHack rooms say what happened in the game, and nothing that is false."""

from __future__ import annotations

import pytest

from crl.protocols import Lesson
from crl.records import Episode, Turn
from crl.worlds.minihack.lessons import lesson_of, toward


def lesson(
    steps: list[tuple[str, str | None]], reason: str = "turn_limit", guided: bool = False, last: str = "over"
) -> Lesson:
    """The lesson of a game: what was seen and done in each turn (None: nothing legal), and how it ended."""
    turns = [
        Turn(
            episode_id="e", turn=index, observation=seen, output="", action=done, valid=done is not None,
            feedback=None, generation_id="g", first_token=0, last_token=1, stop_reason="end_of_turn",
        )
        for index, (seen, done) in enumerate(steps)
    ]  # fmt: skip
    shown = ["x"] if guided else []
    episode = Episode(
        episode_id="e", round=1, family="f", group=0, member=0, environment_seed=0, guided=guided, entry_ids=shown,
        content_digests=shown, experiences=shown, goal="g", success=reason == "success", reward=0.0, turns=len(turns),
        invalid_actions=0, tokens_read=0, tokens_sampled=0, stop_reason=reason, last_observation=last, error=None,
        generation_ids=["g"],
    )  # fmt: skip
    return lesson_of(episode, turns)


NOWHERE, SEEN = "...\n.@.\nNo > in sight.", "..@.>\n> is 2 east. jackal d 1 north."


@pytest.mark.parametrize(
    ("steps", "reason", "expected"),
    [
        ([(SEEN, "east"), (".@>\n> is 1 east.", "east")], "success", "With > 2 east, east, east reached it."),
        ([(NOWHERE, "west"), (SEEN, "east")], "success", "With > 2 east, east reached it."),
        ([(NOWHERE, "west")], "success", "With no > in sight, west led onto it."),
        ([(SEEN, "west"), (NOWHERE, "north")], "failure", "With > 2 east, west, north did not reach it: go east."),
        ([(NOWHERE, "west"), (NOWHERE, "east")], "turn_limit", "Going west changed nothing: turn to another side."),
        ([(NOWHERE, "north"), ("other", "east")], "turn_limit", "No > came in sight by north, east: try south."),
        ([(NOWHERE, None)], "turn_limit", "An answer must be the name of one move, and nothing else."),
    ],
)
def test_what_a_game_teaches(steps: list[tuple[str, str | None]], reason: str, expected: str) -> None:
    assert lesson(steps, reason) == Lesson("add", expected)


def test_what_the_last_action_showed_is_not_denied() -> None:
    told = lesson(
        [(NOWHERE, "north"), ("other", "east")], last="..@\n>..\n> is 2 west 1 south.\nNo turns are left."
    ).text
    assert told == "After north, east > was in sight, 2 west 1 south: then go southwest."


def test_without_hints_the_map_says_where_the_stairs_are() -> None:
    seen = "...>\n.@..\nLegend: @ you, . floor, > stairs down."
    nowhere = "...\n.@.\nLegend: @ you, . floor."
    assert lesson([(seen, "west")], "failure").text == "With > 2 east 1 north, west did not reach it: go northeast."
    assert lesson([(nowhere, "west"), ("other", "east")], "failure").text == (
        "No > came in sight by west, east: try north."
    )
    assert lesson([(nowhere, "west")], last=seen).text == (
        "After west > was in sight, 2 east 1 north: then go northeast."
    )


def test_a_guided_game_betters_its_note_where_it_was_lost() -> None:
    assert lesson([(SEEN, "east")], "success", guided=True) == Lesson("return")
    assert lesson([(SEEN, "west")], "failure", guided=True).kind == "update"


@pytest.mark.parametrize(
    ("bearing", "move"), [("2 east", "east"), ("1 northeast", "northeast"), ("2 east 1 north", "northeast")]
)
def test_a_bearing_asks_for_a_move(bearing: str, move: str) -> None:
    assert toward(bearing) == move
