"""What the experience model writes, read again; and what is wrong with what it should not write."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crl.recipes.dreamgym.form import OK, Predicted, one_line, predicted_part, read, written

LINES = st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=20)
NAMES = st.lists(st.sampled_from(["up", "down", "open door", "wait"]), unique=True, min_size=1, max_size=4)
ANY = (-1e6, 1e6)


@st.composite
def steps(draw: st.DrawFn) -> tuple[Predicted, tuple[str, ...]]:
    before = tuple(draw(NAMES))
    outcome = draw(st.sampled_from(["continues", "success", "failure", "turn_limit"]))
    reward = 0.0 if outcome == "continues" else float(draw(st.integers(-100, 100))) / 8
    lines = draw(st.lists(st.one_of(LINES, st.sampled_from(["Feedback: no", "Actions: up", "Outcome: continues"])),
                          min_size=1, max_size=4))  # fmt: skip
    observation = "\n".join(lines)
    after = draw(st.sampled_from([before, tuple(draw(NAMES))])) if outcome == "continues" else ()
    legal = draw(st.booleans())
    feedback = one_line(draw(st.one_of(st.just(""), LINES)))
    reasoning = one_line(draw(LINES)) or None
    return Predicted(observation, after, outcome, reward, feedback, legal, reasoning), before


@settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(steps())
def test_what_is_written_is_read_again(step: tuple[Predicted, tuple[str, ...]]) -> None:
    predicted, before = step
    if not predicted.observation.strip():
        assert read(written(predicted, before), before, ANY)[0] == "empty_observation"
        return
    assert read(written(predicted, before), before, ANY) == (OK, predicted)


@pytest.mark.parametrize("most", [2 / 3, -1 / 3, 1 - 0.9 * 7 / 256, 123456.789])
def test_the_best_and_the_worst_reward_that_were_taught_can_be_predicted(most: float) -> None:
    """They are written with six digits, which may be more than the most there is, or less than the least."""
    told = Predicted("@ F", (), "success", most)
    for bounds in ((most - 1, most), (most, most + 1), (most, most)):
        reason, found = read(predicted_part(told, ("up",)), ("up",), bounds)
        assert reason == "ok" and found is not None and found.reward == pytest.approx(most, rel=1e-5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no_observation"),
        ("It goes on.", "no_observation"),
        ("Reasoning: because\nOutcome: continues", "no_observation"),
        ("Observation:\n@ F", "no_outcome"),
        ("Observation:\n@ F\nOutcome: maybe", "no_outcome"),
        ("Observation:\n@ F\nOutcome: success", "no_reward"),
        ("Observation:\n@ F\nOutcome: continues, reward 1", "reward_too_early"),
        ("Observation:\n@ F\nOutcome: success, reward 2", "reward_out_of_range"),
        ("Observation:\n@ F\nOutcome: success, reward 1e999", "reward_out_of_range"),
        ("Observation:\nOutcome: continues", "empty_observation"),
        ("Observation:\n@ F\nActions: |\nOutcome: continues", "no_actions"),
    ],
)
def test_the_first_thing_that_is_wrong_is_named(text: str, reason: str) -> None:
    assert read(text, ("up", "down"), (0.0, 1.0)) == (reason, None)


def test_an_example() -> None:
    text = (
        "Reasoning: The agent walks onto the goal.\nObservation:\nF F\nF @\nThe goal is reached.\n"
        "Outcome: success, reward 1"
    )
    assert read(text, ("up",), (0.0, 1.0)) == (
        OK, Predicted("F F\nF @\nThe goal is reached.", (), "success", 1.0, "", True, "The agent walks onto the goal.")
    )  # fmt: skip
