"""A fork goes on as its parent went on: equal digests from every round; with another method, from that round."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from crl.recipes import recipe_in
from crl.recipes.audit import problems_of
from crl.recipes.fork import fork
from crl.run.directory import RunDirectory, manifests
from crl.run.head import heads
from tests.unit.recipes.branched import changed, digests, experiment_of, finished, play

ROUNDS = {"complementary": 2, "overlap": 3, "erl": 2}
"""Rounds of the finished runs. Where rounds overlap, the third is the first that reads two different ones before it."""


@pytest.fixture(scope="module")
def parents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDirectory]:
    """A finished run of each kind."""
    return {kind: finished(tmp_path_factory.mktemp(kind), last, kind) for kind, last in ROUNDS.items()}


@pytest.mark.parametrize(("kind", "number"), [(kind, number) for kind, last in ROUNDS.items() for number in range(last)])
def test_with_nothing_changed_every_later_digest_is_the_parents(
    parents: dict[str, RunDirectory], tmp_path: Path, kind: str, number: int
) -> None:
    parent = parents[kind]
    child = fork(parent, number, experiment_of(parent, "child"), tmp_path)
    assert digests(child) == digests(parent, last=number)
    last = ROUNDS[kind] if number == 0 else number + 1  # the rest follows from the digests that are the same
    ran = play(child, last)
    assert {int(key.split("/")[0]) for key in ran} == set(range(number + 1, last + 1)), "nothing inherited ran again"
    assert digests(child) == digests(parent, last=last)
    assert not problems_of(child, recipe_in(child))
    own = heads(manifests(child.path))
    assert own == {each: head for each, head in heads(manifests(parent.path)).items() if each <= last}
    found = child.lineage.parent
    assert found is not None and (found.experiment, found.round) == (parent.experiment_name, number)
    assert found.head == heads(manifests(parent.path))[number]


def test_the_parent_may_go(parents: dict[str, RunDirectory], tmp_path: Path) -> None:
    source = shutil.copytree(parents["complementary"].path, tmp_path / "played")
    parent = RunDirectory.open(source)
    child = fork(parent, 1, experiment_of(parent, "child", changed(parent.method, rollout__group_size=6)), tmp_path)
    expected = digests(parents["complementary"], after=1)
    shutil.rmtree(source)
    assert not problems_of(child, recipe_in(child))
    play(child, 2)
    assert not problems_of(child, recipe_in(child))
    assert digests(child, after=1) != expected and digests(child, after=1).keys() == expected.keys()
    assert child.method_of(1, "plan").rollout.group_size == 4 and child.method_of(2, "plan").rollout.group_size == 6
