"""Generated bug-fix tasks: deterministic, different in content, verified, and reported by what is observed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from crl.errors import BadInput
from data.swe.mutations.__main__ import write_data_set
from crl.worlds.swe.dressing import dressed, dresses
from crl.worlds.swe.library import libraries
from data.swe.mutations.operators import mutations
from crl.worlds.swe.repository import Clones
from crl.worlds.swe.rows import load_rows
from crl.worlds.swe.shipped import LEVELS, Task, shipped_rows, shipped_tasks
from data.swe.mutations.trials import run_trials
from data.swe.mutations.bugs import digest_of, known
from crl.worlds.swe.variants import Variants, known_bugs, variant

ROOT = Path(__file__).parents[3]
TRAIN = sorted(name for name, library in libraries().items() if library.split == "train")
ROWS = """
import json
from crl.worlds.swe.variants import Variants
print(json.dumps([task.row().model_dump(mode="json") for task in Variants().draw(12, seed=5)]))
"""


def test_there_are_thousands() -> None:
    variants = Variants()
    assert variants.bugs >= 1000
    assert len(variants) >= 10_000
    levels = Counter(bug.level for name in TRAIN for bug in known_bugs(name))
    assert min(levels[level] for level in LEVELS) >= 50
    assert len({bug.operator for name in TRAIN for bug in known_bugs(name)}) >= 12


def test_only_libraries_to_train_on_have_them() -> None:
    assert {name for name in libraries() if known_bugs(name)} == set(TRAIN)
    with pytest.raises(BadInput, match="no variants"):
        Variants("evaluation")
    assert {task.split for task in islice(Variants(), 50)} == {"train"}


def test_they_are_equal_in_other_processes() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "5"}
    other = subprocess.run(
        [sys.executable, "-c", ROWS], capture_output=True, text=True, cwd=ROOT, env=environment, check=True
    )
    drawn = Variants().draw(12, seed=5)
    assert json.loads(other.stdout) == [task.row().model_dump(mode="json") for task in drawn]
    assert [task.instance_id for task in Variants().draw(12, seed=6)] != [task.instance_id for task in drawn]


def test_they_differ_in_content() -> None:
    variants = Variants()
    every = [variants[number] for number in (*range(120), *range(variants.bugs, variants.bugs + 120))]
    assert len({task.row().base_commit for task in every}) == 240
    assert len({task.instance_id for task in every}) == 240
    broken = {text for task in shipped_tasks().values() for text in task.broken.values()}
    assert broken - {text for task in every for text in task.broken.values()}


def test_lists_of_bugs_belong_to_the_code_as_it_is() -> None:
    for name in TRAIN:
        files, bugs = libraries()[name].files, known_bugs(name)
        assert [digest_of(bug.applied(files[bug.path])) for bug in bugs] == [bug.digest for bug in bugs]
        assert len({bug.digest for bug in bugs}) == len(bugs)


def test_listed_bugs_are_mutations() -> None:
    library = libraries()["recency"]
    possible = {
        digest_of(each.applied(library.files[path]))
        for path in library.sources
        for each in mutations(path, library.files[path])
    }
    assert {bug.digest for bug in known_bugs("recency")} <= possible


@pytest.mark.parametrize("name", TRAIN)
def test_sampled_variants_fail_before_and_pass_after_their_fix(name: str) -> None:
    """In a dress in which names differ: what was verified of the plain library holds."""
    check(name, dress=1 + len(name), step=29)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAIN)
def test_every_bug_in_every_name(name: str) -> None:
    for dress in (0, 1, dresses(libraries()[name]) - 1):
        check(name, dress, step=1)


def check(name: str, dress: int, step: int) -> None:
    mine = [variant(f"{name}-v{number:04d}-{dress}") for number in range(0, len(known_bugs(name)), step)]
    library = dressed(name, dress)
    correct, *trials = run_trials(library, [{}, *(task.broken for task in mine)], hash_seed=3)
    assert (correct.ended, correct.failed) == (None, ())
    for task, trial in zip(mine, trials, strict=True):
        assert trial.ended is None, task.instance_id
        assert set(trial.failed) == {*task.fail_to_pass, *task.visible_failures}, task.instance_id
        assert task.fail_to_pass
        assert not {*task.pass_to_pass} & set(trial.failed)


def test_dresses_differ() -> None:
    for library in libraries().values():
        words = [word for others in library.renames.values() for word in others]
        text = "\n".join([*library.files, *library.files.values(), *library.judging.values()])
        taken = set(text.replace("/", " ").replace("(", " ").replace(".", " ").split())
        assert not taken & set(words), library.name
        names = {frozenset(dressed(library.name, dress).files.items()) for dress in range(40)}
        assert len(names) == 40


def test_statements_say_what_was_seen() -> None:
    for task in islice(Variants(), 200):
        assert "```python\n" in task.statement
        assert f"from {task.library.sources[0].partition('/')[0]} import" in task.statement
        assert any(word in task.statement.lower() for word in ("expected", "should")), task.statement
        assert not revealed(task), task.instance_id


def revealed(task: Task) -> list[str]:
    added = [line[1:].strip() for line in task.row().patch.splitlines() if line.startswith("+") and line[:3] != "+++"]
    return [line for line in added if len(line) > 12 and line in task.statement]


def test_a_name_gives_its_variant() -> None:
    task = Variants()[17]
    assert variant(task.instance_id).row() == task.row()
    for name in ("recency-v9999-0", "recency-none-value", "nothing-v1-0", "recency-v0001-999999", "throttle-v0-0"):
        with pytest.raises(BadInput, match="names no variant"):
            variant(name)
    with pytest.raises(IndexError):
        Variants()[len(Variants())]


def test_levels_and_kinds_select() -> None:
    hard = Variants(level="hard")
    assert {task.level for task in islice(hard, 30)} == {"hard"}
    assert {task.kind for task in islice(Variants(kind="boundary"), 30)} == {"boundary"}
    assert hard.bugs + Variants(level="easy").bugs + Variants(level="medium").bugs == Variants().bugs


@pytest.mark.slow
def test_the_lists_can_be_made_again() -> None:
    """The list of one library, made anew: bugs that hang or not by the machine's load may differ, so nearly all."""
    made = {bug.digest for bug in known(libraries()["durations"])}
    listed = {bug.digest for bug in known_bugs("durations")}
    assert len(made & listed) >= 0.95 * len(listed)


def test_a_data_set_is_rows_and_repositories(tmp_path: Path) -> None:
    rows = write_data_set(tmp_path, variants=20, seed=3)
    loaded = load_rows(rows)
    assert len(loaded) == len(shipped_tasks()) + 20
    assert loaded == [*shipped_rows(), *(task.row() for task in Variants().draw(20, seed=3))]
    assert Counter((row.model_extra or {})["split"] for row in loaded)["train"] > 50
    assert len(set(Clones(tmp_path / "repos").check(loaded))) == len(libraries())
    before = rows.read_bytes()
    assert write_data_set(tmp_path, variants=20, seed=3).read_bytes() == before
    with pytest.raises(BadInput, match="cannot be drawn"):
        write_data_set(tmp_path, variants=-1)
