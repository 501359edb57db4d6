"""Forks into learned replay: from a buffer that was drawn from evenly, and from runs that kept none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crl.audit.audit import problems_of
from crl.errors import BadInput
from crl.policies.embedders import LexicalEmbedder
from crl.recipes.importance_replay.rows import ExtractorTensor, ReplayDraw
from crl.records import rows_of
from crl.rounds.fork import fork
from crl.rounds.recipe import recipe_in
from crl.run.directory import RunDirectory
from tests.recipes.importance_replay.replay_played import ReplayServices, experiment
from tests.unit.recipes.branched import begun, changed, digests, experiment_of, play

pytestmark = pytest.mark.slow

EMBEDDED = {"recipe__weighting": "learned", "recipe__extractor__embedder": "lexical"}
LEARNED = {f"method__{key}": value for key, value in EMBEDDED.items()}


def services(made: Any) -> ReplayServices:
    found = ReplayServices(made)
    found.embedder = LexicalEmbedder  # type: ignore[attr-defined, method-assign]
    return found


def finished(root: Path, **changes: Any) -> RunDirectory:
    made = experiment(method__recipe__buffer__capacity=200, **changes)  # room for every round
    run = begun(root, made)
    play(run, 2, services(made))
    return run


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return finished(tmp_path_factory.mktemp("learned"), **LEARNED)


def forked(parent: RunDirectory, root: Path, **changes: Any) -> RunDirectory:
    return fork(parent, 2, experiment_of(parent, "child", changed(parent.method, **changes)), root)


@pytest.mark.parametrize("weighting", ["uniform", "none"])
def test_a_run_that_learned_no_worth_goes_on_learning_it(tmp_path: Path, weighting: str) -> None:
    parent = finished(tmp_path / "parent", method__recipe__weighting=weighting)
    child = forked(parent, tmp_path, **EMBEDDED)
    play(child, 4, services(experiment_of(child, "child")))
    assert not problems_of(child, recipe_in(child))
    for number in (3, 4):
        draws = rows_of(ReplayDraw, child.read(number, "credit", ReplayDraw))
        widths = {len(draw.features) for draw in draws}
        assert len(widths) == 1 and widths.pop() > 6, "each has an embedding, whichever round it came in"
        inherited = {draw.age for draw in draws if draw.age >= number - 2}
        assert bool(inherited) == (weighting == "uniform")
    assert rows_of(ExtractorTensor, child.read(4, "measure", ExtractorTensor)), "the network learned"


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"recipe__extractor__hidden": 5}, "method.recipe.extractor.hidden"),
        ({"recipe__extractor__embedder": None}, "method.recipe.extractor.embedder"),
        ({"recipe__probe__pool": 128}, "method.recipe.probe.pool"),
    ],
)
def test_a_network_of_another_shape_is_refused(
    learned: RunDirectory, tmp_path: Path, change: dict[str, Any], where: str
) -> None:
    with pytest.raises(BadInput, match=where):
        forked(learned, tmp_path, **change)
    assert not (tmp_path / "child").exists()


def test_a_network_of_the_grandparent_counts_too(learned: RunDirectory, tmp_path: Path) -> None:
    even = forked(learned, tmp_path, recipe__weighting="uniform")
    again = {"recipe__weighting": "learned", "recipe__extractor__embedder": None}
    with pytest.raises(BadInput, match=r"method\.recipe\.extractor\.embedder"):
        fork(even, 2, experiment_of(even, "grandchild", changed(even.method, **again)), tmp_path)


def test_rollouts_are_kept_only_with_the_update_between_the_probes(learned: RunDirectory, tmp_path: Path) -> None:
    def kept(**changes: Any) -> RunDirectory:
        made = experiment_of(learned, "child", changed(learned.method, **changes))
        return fork(learned, 1, made, tmp_path, keep_rollouts=True)

    for change in (
        {"roles__actor__optimizer__learning_rate": 0.5},
        {"roles__actor__deepspeed__zero_stage": 1},
        {"recipe__objective__epsilon": 0.1},
        {"recipe__buffer__steps": 2},
        {"recipe__extractor__refresh_every": 48},
        {"recipe__probe__scope": "family"},
        {"recipe__probe__tasks": 2},
    ):
        with pytest.raises(BadInput, match=next(iter(change)).replace("__", ".")):
            kept(**change)
    child = kept(
        evaluation__every=0, recipe__extractor__epochs=1, recipe__extractor__learning_rate=0.5,
        recipe__extractor__window=1, recipe__probe__margin=0.01,
    )  # fmt: skip
    assert play(child, 2, services(experiment_of(child, "child")))[0] == "2/measure", "played and learned stays"
    assert digests(child)["2/measure"] != digests(learned)["2/measure"] and not problems_of(child, recipe_in(child))
