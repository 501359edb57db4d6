"""Trajectories as text: compact, within budget, beginning and end kept."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from crl.extractor.trajectory import outcome_text, render_trajectory
from crl.records import Episode, Turn


def turn(number, observation, output, *, action=None, valid=True, feedback=None):
    return Turn(
        episode_id="e",
        turn=number,
        observation=observation,
        output=output,
        action=action if action is not None or not valid else output,
        valid=valid,
        feedback=feedback,
        generation_id="g",
        first_token=0,
        last_token=1,
        stop_reason="end_of_turn",
    )


def episode(success, stop_reason):
    return Episode(
        episode_id="e", round=1, family="room", group=0, member=0, environment_seed=0, guided=False,
        goal="g", success=success, reward=0.0, turns=1, invalid_actions=0,
        tokens_read=4, tokens_sampled=2,
        stop_reason=stop_reason, last_observation="e", error=None, generation_ids=["g"],
    )  # fmt: skip


def test_a_short_trajectory_is_shown_whole():
    turns = [
        turn(0, "a wall north\n", "east"),
        turn(1, "stairs", "I go north", action="north"),
        turn(2, "stairs", "fly", valid=False, feedback="fly is not an action"),
    ]
    whole = (
        "Turn 1: a wall north\nAction: east\n"
        "Turn 2: stairs\nAction: I go north → north\n"
        "Turn 3: (unchanged)\nAction: fly → invalid (fly is not an action)"
    )
    assert render_trajectory(turns, None) == (whole, 3)
    assert render_trajectory(turns, None, 10_000) == (whole, 3)
    assert render_trajectory([], None) == ("", 0)


def test_what_was_told_about_a_legal_action_is_shown_too():
    turns = [turn(0, "a shop", "search[x]", feedback="3 found.\n"), turn(1, "results", "buy", action="buy it")]
    told = "Turn 1: a shop\nAction: search[x] (3 found.)\nTurn 2: results\nAction: buy → buy it"
    assert render_trajectory(turns, None).text == told


def test_the_end_is_what_the_last_action_did():
    turns = [turn(0, "@.>", "east"), turn(1, ".@>", "east")]
    told = "Turn 1: @.>\nAction: east\nTurn 2: .@>\nAction: east\n"
    assert render_trajectory(turns, "..@\nThe goal is reached.").text == told + "End: ..@\nThe goal is reached."
    assert render_trajectory(turns, ".@>").text == told + "End: (unchanged)"
    assert render_trajectory(turns, "").text == told.rstrip() == render_trajectory(turns, None).text


def test_of_an_observation_that_is_partly_the_same_the_new_rows_are_shown():
    wall, floor, room = "|---------|", "|.........|", "|.@.......|"
    turns = [
        turn(0, "\n".join([wall, room, floor, floor, wall]), "south"),
        turn(1, "\n".join([wall, floor, room, floor, wall]), "south"),
        turn(2, "\n".join([wall, floor, room, floor, wall, "You see here a key."]), "pick up"),
        turn(3, "\n".join([wall, floor, room, floor, wall]), "south"),
        turn(4, "dark", "south"),
    ]
    assert render_trajectory(turns, "dark\nNo turns are left.").text == "\n".join(
        [
            "(=3: three rows as before)",
            f"Turn 1: {turns[0].observation}", "Action: south",
            f"Turn 2: =1\n{floor}\n=2\n=1", "Action: south",
            "Turn 3: =5\nYou see here a key.", "Action: pick up",
            "Turn 4: =5", "Action: south",
            "Turn 5: dark", "Action: south",
            "End: =1\nNo turns are left.",
        ]
    )  # fmt: skip


LINES = st.lists(st.sampled_from(["....", ".@..", "..@.", "|-----|", "> is 2 east.", "It's solid stone."]), max_size=6)


def assert_tells(told, seen, before):
    """Rows as told stand for the rows seen: word for word, or as so many rows of the observation before."""
    at = 0
    for row in told:
        if row == "(unchanged)":
            at += len(before)
            assert seen == before
        elif row.startswith("="):
            size = int(row[1:])
            assert "\n".join(seen[at : at + size]) in "\n".join(before)
            at += size
        else:
            assert seen[at] == row
            at += 1
    assert at == len(seen)


@settings(deadline=None)
@given(st.lists(LINES, min_size=2, max_size=8))
def test_nothing_that_was_seen_is_lost_and_no_observation_is_longer(games):
    observations = ["\n".join(rows) or "dark" for rows in games]
    turns = [turn(number, seen, "go") for number, seen in enumerate(observations[:-1])]
    text, shown = render_trajectory(turns, observations[-1])
    assert shown == len(turns)
    pieces = re.split(r"(?m)^(?:Turn \d+|End): ", text)[1:]
    assert len(pieces) == len(observations)
    before = ""
    for piece, seen in zip(pieces, observations, strict=True):
        told = piece.removesuffix("\n").removesuffix("\nAction: go")
        assert_tells(told.split("\n"), seen.split("\n"), before.split("\n"))
        assert len(told) <= max(len(seen), len("(unchanged)"))
        before = seen


def test_the_middle_is_left_out_first():
    turns = [turn(number, f"room {number}", "north") for number in range(10)]
    text, shown = render_trajectory(turns, "stairs", 170)
    assert len(text) <= 170 and shown == 4
    assert text.startswith("Turn 1: room 0") and text.endswith("Turn 10: room 9\nAction: north\nEnd: stairs")
    assert "[… 6 turns left out …]" in text
    assert sum(f"room {number}\nAction: north" in text for number in range(10)) == shown


def test_after_the_gap_an_unchanged_observation_is_said_again():
    turns = [turn(number, "the same view of a rather long room", "north") for number in range(8)]
    text = render_trajectory(turns, "the same view of a rather long room", 220).text
    assert text.split("left out …]\n")[1].startswith("Turn 7: the same view")
    assert text.endswith("End: (unchanged)")


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.text(max_size=60), st.text(max_size=20)), max_size=12), st.text(max_size=40),
    st.integers(0, 400),
)  # fmt: skip
def test_the_budget_holds(pieces, last, budget):
    turns = [turn(number, seen, done) for number, (seen, done) in enumerate(pieces)]
    text, shown = render_trajectory(turns, last, budget)
    assert len(text) <= budget and 0 <= shown <= len(turns)
    assert (shown == len(turns)) == (text == render_trajectory(turns, last).text or not turns)


def test_outcome():
    assert outcome_text(episode(True, "success")) == "success"
    assert outcome_text(episode(False, "turn_limit")) == "failure (turn limit)"
    assert outcome_text(episode(False, "failure")) == "failure"


def test_a_question_is_shown_with_its_answer():
    asked = turn(0, "a", "ASK: where?", action="<ask>", feedback="go up")
    refused = turn(1, "a", "ASK: and now?", action="<ask>", valid=False, feedback="no more")
    assert render_trajectory([asked, refused], None).text == (
        "Turn 1: a\nAction: ASK: where? → go up\nTurn 2: (unchanged)\nAction: ASK: and now? → invalid (no more)"
    )
