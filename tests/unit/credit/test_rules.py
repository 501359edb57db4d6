"""The rules of credit: one list, one file each, and what each makes of uses; the arithmetic is in `tests/paper`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import crl.credit.rules
from crl.credit.buffer import Output, earners, fill_buffer
from crl.credit.rules import Rule, TaskKey, rule_of
from crl.records.learning import CREDIT_RULES
from tests.unit.credit.scoring import scored, use_of
from tests.unit.credit.test_buffer_rows import text
from tests.unit.credit.test_credit_rows import episode


def test_every_rule_is_a_file_and_every_file_is_in_the_list() -> None:
    files = {path.stem for path in Path(crl.credit.rules.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == set(CREDIT_RULES)
    assert all(isinstance(rule_of(name), Rule) for name in CREDIT_RULES)


@pytest.mark.parametrize("name", CREDIT_RULES)
def test_every_rule_has_a_row_for_every_use_and_what_was_rejected_earns_the_verdict_alone(name: str) -> None:
    played = [episode(0, member, guided=True, success=member == 0) for member in range(2)]
    uses = [use_of("x", 1.0, "g0m0"), use_of("y", None, "g0m1", entry="n", score=0.0)]
    found = scored(name, uses, episodes=played)
    assert [(row.episode_id, row.entry_id, row.generation_id) for row in found.uses] == [
        ("g0m0", "m", "x"), ("g0m1", "n", "y"),
    ]  # fmt: skip
    assert (found.uses[1].basis, found.uses[1].outcome, found.uses[1].reward) == ("none", None, 0.0)
    assert (rule_of(name).keeps is not None) or not found.after


def test_by_other_tasks_the_own_task_is_the_recipients_and_a_task_counts_once_whatever_notes_were_used() -> None:
    """x wrote m and n on task 1; y, on task 2, repeated m."""
    tasks = {name: TaskKey("room", int(name[0])) for name in ("1a", "1b", "2a", "3a", "3b", "3c")}
    played = [
        episode(0, 0, guided=True, success=True, episode_id=name, environment_seed=task.level)
        for name, task in tasks.items()
    ]
    rows = fill_buffer([], [Output("y", (1, "distill"), [text("x")])], [], None, round=1)
    uses = [
        *(use_of("x", reward, name) for name, reward in (("1a", 1.0), ("1b", -1.0), ("2a", 1.0), ("3a", -1.0))),
        *(use_of("x", 1.0, name, entry="n") for name in ("3b", "3c")),
    ]
    own = {"x": tasks["1a"], "y": tasks["2a"]}
    earned = scored("other_tasks", uses, episodes=played, own=own, earners=earners(rows, frozenset())).earned
    buffer = fill_buffer(rows, [Output("x", (1, "distill"))], earned, None, round=2)
    found = {row.generation_id: (row.uses, row.score_sum) for row in buffer}
    assert found["x"] == (2, pytest.approx(1.0 + (-1.0 + 1.0 + 1.0) / 3)), "task 2, and task 3 by both of its notes"
    assert found["y"] == (2, pytest.approx((1.0 - 1.0) / 2 - 1.0)), "tasks 1 and 3, by the text it repeated"


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 3), st.booleans())
def test_by_other_tasks_a_task_is_known_by_its_content_under_any_seed(levels: list[int], own: int, said: bool) -> None:
    """Seeds all differ; where the environment says what is in a level, seeds of one level are one task."""
    played = [
        episode(
            0, 0, guided=True, success=True, episode_id=f"e{at}", environment_seed=at, task_digest=f"d{level}" * said
        )
        for at, level in enumerate(levels)
    ]
    uses = [use_of("x", 1.0, f"e{at}") for at in range(len(levels))]
    found = scored("other_tasks", uses, episodes=played, own={"x": TaskKey("room", f"d{own}" if said else 100)})
    bases = [row.basis for row in found.uses]
    assert bases == ["own_task" if said and level == own else "other_task" for level in levels]
    assert len(found.earned) == (len({*levels} - {own}) if said else len(levels))
