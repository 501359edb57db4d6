"""Trajectories as text: compact, within budget, beginning and end kept."""

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
        first_token=0,
        last_token=1,
        stop_reason="end_of_turn",
    )


def episode(success, stop_reason):
    return Episode(
        episode_id="e", round=1, family="room", group=0, member=0, environment_seed=0, guided=False, entry_id=None,
        content_digest=None, experience=None, goal="g", success=success, reward=0.0, turns=1, invalid_actions=0,
        tokens_read=4, tokens_sampled=2,
        stop_reason=stop_reason, error=None, generation_id="g",
    )  # fmt: skip


def test_a_short_trajectory_is_shown_whole():
    turns = [
        turn(0, "a wall north\n", "east"),
        turn(1, "stairs", "I go north", action="north"),
        turn(2, "stairs", "fly", valid=False, feedback="fly is not an action"),
    ]
    assert render_trajectory(turns) == (
        "Turn 1: a wall north\nAction: east\n"
        "Turn 2: stairs\nAction: I go north → north\n"
        "Turn 3: (unchanged)\nAction: fly → invalid (fly is not an action)"
    )
    assert render_trajectory(turns, 10_000) == render_trajectory(turns)
    assert render_trajectory([]) == ""


def test_the_middle_is_left_out_first():
    turns = [turn(number, f"room {number}", "north") for number in range(10)]
    text = render_trajectory(turns, 160)
    assert len(text) <= 160
    assert text.startswith("Turn 1: room 0") and text.endswith("Turn 10: room 9\nAction: north")
    assert "[… 6 turns left out …]" in text


def test_after_the_gap_an_unchanged_observation_is_said_again():
    turns = [turn(number, "the same view of a rather long room", "north") for number in range(8)]
    text = render_trajectory(turns, 200)
    assert text.split("left out …]\n")[1].startswith("Turn 7: the same view")


@settings(deadline=None)
@given(st.lists(st.tuples(st.text(max_size=60), st.text(max_size=20)), max_size=12), st.integers(0, 400))
def test_the_budget_holds(pieces, budget):
    turns = [turn(number, seen, done) for number, (seen, done) in enumerate(pieces)]
    assert len(render_trajectory(turns, budget)) <= budget


def test_outcome():
    assert outcome_text(episode(True, "success")) == "success"
    assert outcome_text(episode(False, "turn_limit")) == "failure (turn limit)"
    assert outcome_text(episode(False, "failure")) == "failure"


def test_a_question_is_shown_with_its_answer():
    asked = turn(0, "a", "ASK: where?", action="<ask>", feedback="go up")
    refused = turn(1, "a", "ASK: and now?", action="<ask>", valid=False, feedback="no more")
    assert render_trajectory([asked, refused]) == (
        "Turn 1: a\nAction: ASK: where? → go up\nTurn 2: (unchanged)\nAction: ASK: and now? → invalid (no more)"
    )
