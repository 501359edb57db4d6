"""The script that makes more bug-fix tasks: what it breaks is broken, told as a user sees it, and played as rows."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
import typer

from crl.worlds.swe import SweConfig
from crl.worlds.swe.library import libraries
from crl.worlds.swe.repository import Clones
from crl.worlds.swe.rows import load_rows
from crl.worlds.swe.shipped import Level, Task, shipped_tasks
from data.swe.mutations.__main__ import TRAINED, main, write_rows
from data.swe.mutations.bugs import bugs_of, renamed
from data.swe.mutations.operators import mutations
from data.swe.mutations.trials import run_trials
from tests.worlds.swe.world import Player, made, needs_bwrap

MOST = 8
NAME = "durations"
"""A library none of whose mutations waits for long."""


@cache
def made_bugs() -> tuple[Task, ...]:
    return tuple(bugs_of(libraries()[NAME], MOST, seed=0))


def test_a_mutation_changes_one_place() -> None:
    name = "recency"
    for path in libraries()[name].sources:
        text = libraries()[name].files[path]
        found = mutations(path, text)
        assert len({each.applied(text) for each in found} - {text}) == len(found) > 10
        assert all(len(each.applied(text)) - len(text) == len(each.text) - (each.end - each.start) for each in found)


@pytest.mark.slow
def test_there_are_thousands_of_places_and_a_dozen_ways_to_break_them() -> None:
    every = [libraries()[name] for name in TRAINED]
    found = [each for library in every for path in library.sources for each in mutations(path, library.files[path])]
    assert len(found) >= 2000
    assert len({each.operator for each in found}) >= 12


@pytest.mark.slow
def test_bugs_fail_before_and_pass_after_their_fix() -> None:
    """In a run with another order of sets, under the library's own names and under others."""
    assert len(made_bugs()) == MOST == len({task.row().patch for task in made_bugs()})
    assert len({task.instance_id for task in made_bugs()}) == MOST
    assert {task.level for task in made_bugs()} <= set(get_args(Level))
    for number in (0, 5):
        tasks = [renamed(task, number) for task in made_bugs()]
        correct, *trials = run_trials(tasks[0].library, [{}, *(task.broken for task in tasks)], hash_seed=3)
        assert (correct.ended, correct.failed) == (None, ())
        for task, trial in zip(tasks, trials, strict=True):
            assert trial.ended is None, task.instance_id
            assert set(trial.failed) == {*task.fail_to_pass, *task.visible_failures}, task.instance_id
            assert task.fail_to_pass and not {*task.pass_to_pass} & set(trial.failed)


@pytest.mark.slow
def test_the_seed_decides_what_is_broken() -> None:
    library = libraries()[NAME]
    again, other = (bugs_of(library, 2, seed) for seed in (0, 1))
    assert [task.row() for task in again] == [task.row() for task in made_bugs()[:2]]
    assert [task.row() for task in other] != [task.row() for task in again]


@pytest.mark.slow
def test_other_names_are_nowhere_in_the_library_before() -> None:
    task = made_bugs()[0]
    assert renamed(task, 0) is task
    others = [renamed(task, number) for number in range(1, 20)]
    assert len({tuple(other.files.items()) for other in others}) == 19
    assert len({other.instance_id for other in others}) == 19
    for other in others:
        assert f"from {other.library.sources[0].partition('/')[0]} import" in other.statement


def test_statements_say_what_was_seen_and_not_where() -> None:
    for task in made_bugs():
        assert "```python\n" in task.statement and f"from {NAME} import" in task.statement
        assert any(word in task.statement.lower() for word in ("expected", "should")), task.statement
        added = [line[1:].strip() for line in task.row().patch.splitlines() if line[0] == "+" and line[:3] != "+++"]
        assert not [line for line in added if len(line) > 12 and line in task.statement], task.instance_id


def test_rows_and_repositories_are_what_swe_reads(tmp_path: Path) -> None:
    tasks = [*shipped_tasks().values(), *made_bugs(), renamed(made_bugs()[0], 3)]
    rows = write_rows(tasks, tmp_path)
    loaded = load_rows(rows)
    assert [row.instance_id for row in loaded] == [task.instance_id for task in tasks]
    assert all(len(row.base_commit) == 40 for row in loaded), "commits, not branches"
    assert Counter((row.model_extra or {})["split"] for row in loaded)["train"] > 50
    assert len(Clones(tmp_path / "repos").check(loaded)) == len(libraries())
    before = rows.read_bytes()
    assert write_rows(tasks, tmp_path).read_bytes() == before
    config = SweConfig(rows=str(rows))
    assert config.held_out_levels == sum(task.split == "evaluation" for task in tasks)


def test_a_library_that_is_held_out_is_not_broken(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match=r"throttle: expected one of agenda"):
        main(tmp_path, bugs=1, names=1, seed=0, library=["throttle"])
    assert not list(tmp_path.iterdir())


@needs_bwrap
@pytest.mark.slow
def test_what_the_script_writes_is_played(tmp_path: Path) -> None:
    main(tmp_path / "made", bugs=6, names=2, seed=4, library=[NAME])
    config = SweConfig(rows=str(tmp_path / "made/rows.jsonl"), cache=str(tmp_path / "cache"), max_turns=50)
    with closing(made(config)) as environment:
        training = environment.tasks.training
        seeds = [number for number, row in enumerate(training) if row.instance_id not in shipped_tasks()]
        assert len(seeds) == 12
        for seed in seeds:
            assert Player(environment, seed).submit().reward == 0.0
            environment.reset_many([seed])
            while not (step := environment.step_many({0: environment.oracle(0)})[0]).done:
                assert step.legal
            assert step.reward == 1.0, training[seed].instance_id
