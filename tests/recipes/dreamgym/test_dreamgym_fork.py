"""Forks of DreamGym: nothing is played in a model that the fork's own floors were not applied to, and a teacher is
asked about what it was not asked about before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crl.audit.audit import problems_of
from crl.errors import BadInput
from crl.lab.study.metrics import read_run
from crl.recipes.dreamgym.rows import Annotation, Prediction, Transition
from crl.records import Episode, Generation, rows_of
from crl.rounds.fork import fork
from crl.rounds.recipe import recipe_in
from crl.run.directory import RunDirectory
from tests.marks import sampled
from tests.recipes.dreamgym.dreamgym_played import DreamServices, experiment
from tests.unit.recipes.branched import begun, changed, digests, experiment_of, play, services_of

pytestmark = pytest.mark.slow

ONE_FIT = {"recipe__explore__every": 0}
TAUGHT: dict[str, Any] = {
    "recipe__fit__reasoning": "teacher",
    "roles__teacher": {"weights": "actor", "sampling": {"temperature": 1.0, "max_new_tokens": 16}},
    "prompts__annotate": {"system": "Why?", "first": "{observation} {action} {outcome}"},
}


def finished(root: Path, rounds: int, **changes: Any) -> RunDirectory:
    made = experiment(**{f"method__{key}": value for key, value in changes.items()})
    run = begun(root / "parent", made)
    play(run, rounds, DreamServices(made))
    return run


def forked(parent: RunDirectory, number: int, root: Path, name: str = "child", **changes: Any) -> RunDirectory:
    return fork(parent, number, experiment_of(parent, name, changed(parent.method, **changes)), root)


def go_on(run: RunDirectory, last: int) -> None:
    play(run, last, DreamServices(experiment_of(run, run.experiment_name)))


def streams(run: RunDirectory, number: int) -> set[str]:
    return {row.stream for row in rows_of(Episode, run.read(number, "collect", Episode))}


def test_nothing_is_played_in_a_model_that_was_never_fitted(tmp_path: Path) -> None:
    parent = finished(tmp_path, 1, recipe__synthetic_share=0.0)
    child = forked(parent, 1, tmp_path, recipe__synthetic_share=0.75, recipe__explore__every=2)
    with pytest.raises(BadInput, match="no round up to 2 fits the experience model") as caught:
        go_on(child, 2)
    assert "method.recipe.explore.every=1" in str(caught.value) and "plan" not in child.complete_stages(2)
    child = forked(parent, 1, tmp_path, "fitted", recipe__synthetic_share=0.75, recipe__explore__every=1)
    go_on(child, 2)
    assert streams(child, 2) == {"synthetic", "real"} and not problems_of(child, recipe_in(child))


def explored(run: RunDirectory, number: int) -> tuple[int, set[str]]:
    """Episodes that a round explores, and who plays them."""
    episodes = rows_of(Episode, run.read(number, "explore", Episode))
    return len(episodes), {row.policy for row in rows_of(Transition, run.read(number, "explore", Transition))}


def test_the_first_fit_of_a_fork_is_explored_as_a_first_one(tmp_path: Path) -> None:
    parent = finished(tmp_path, 1, recipe__synthetic_share=0.0)
    child = forked(parent, 1, tmp_path, recipe__synthetic_share=0.75, recipe__explore__every=1)
    go_on(child, 3)
    assert explored(child, 2) == (10, {"random"}) and explored(child, 3) == (5, {"actor"})
    drifted = [len(rows_of(Prediction, child.read(number, "drift", Prediction))) for number in (2, 3)]
    assert drifted[0] == 0 < drifted[1], "there was no model before the first fit"
    metrics = read_run(child.path, 3)
    drawn = [
        sum(sum(row.loss_mask) for row in rows_of(Generation, child.read(2, stage, Generation)) if row.kind != "fit")
        for stage in child.complete_stages(2)
        if stage != "explore" and not stage.startswith("evaluate")
    ]
    assert metrics.tokens[2] - metrics.tokens[1] == sum(drawn), "nobody sampled what was played at random"


@pytest.mark.parametrize("share", [0.4, 0.1])
def test_levels_do_not_change_sides(tmp_path: Path, share: float) -> None:
    parent = finished(tmp_path, 1)
    with pytest.raises(BadInput, match="what fits saw and what measures the model must stay apart") as caught:
        forked(parent, 1, tmp_path, recipe__explore__held_out=share)
    forked(parent, 0, tmp_path, "again", recipe__explore__held_out=share)  # nothing was played yet
    assert caught.value.where == "method.recipe.explore.held_out" and not (tmp_path / "child").exists()


@pytest.mark.parametrize("turns", [0, 3])
def test_fits_and_predictions_show_as_many_earlier_turns(tmp_path: Path, turns: int) -> None:
    parent = finished(tmp_path, 1)
    with pytest.raises(BadInput, match="have 2 earlier turns with them: a fit would show those") as caught:
        forked(parent, 1, tmp_path, recipe__predict__history=turns)
    assert caught.value.where == "method.recipe.predict.history"
    forked(parent, 0, tmp_path, "again", recipe__predict__history=turns)  # nothing was played yet


def test_a_fork_applies_its_own_floors_to_the_last_metrics(tmp_path: Path) -> None:
    parent = finished(tmp_path, 2, **ONE_FIT)
    child = forked(parent, 1, tmp_path, recipe__truth__min_observation_accuracy=1.0)
    with pytest.raises(BadInput, match=r"not true enough to play in: observation_agreement is 0\.\d\d\n") as caught:
        go_on(child, 2)
    assert caught.value.where == "round 1, stage validate" and "plan" not in child.complete_stages(2)
    grandchild = forked(child, 1, tmp_path, "grandchild")
    with pytest.raises(BadInput, match="not true enough"):
        go_on(grandchild, 2)
    child = forked(parent, 1, tmp_path, "low", recipe__truth__min_observation_accuracy=0.01)
    go_on(child, 2)
    assert "synthetic" in streams(child, 2) and not problems_of(child, recipe_in(child))
    child = forked(
        parent, 1, tmp_path, "real", recipe__truth__min_observation_accuracy=1.0, recipe__synthetic_share=0.0
    )
    go_on(child, 2)
    assert streams(child, 2) == {"real"}, "what is not played in need not be true"


@pytest.mark.parametrize("number", sampled([1, 0], 2))
def test_with_nothing_changed_every_later_digest_is_the_parents(tmp_path: Path, number: int) -> None:
    parent = finished(tmp_path, 2, **ONE_FIT)
    child = forked(parent, number, tmp_path)
    go_on(child, 2)
    assert digests(child) == digests(parent)
    read = {key.split("/")[1] for key in parent.manifest(2, "plan").digested.inputs}
    assert "credit" in read and "validate" not in read, "the plan of the round with the fit has applied these floors"


@pytest.mark.parametrize(
    ("before", "change"),
    [
        pytest.param({}, {**TAUGHT, "recipe__explore__every": 1}, id="the parent had no teacher"),
        pytest.param(
            {**TAUGHT, **ONE_FIT}, {"recipe__explore__every": 1},
            id="the parent had other intervals",
        ),
        pytest.param(
            {**TAUGHT, **ONE_FIT, "recipe__fit__max_transitions": 5},
            {"recipe__explore__every": 1, "recipe__fit__max_transitions": 4096},
            id="the parent fitted fewer",
        ),
    ],
)  # fmt: skip
def test_a_teacher_is_asked_once_about_whatever_a_fit_learns(
    tmp_path: Path, before: dict[str, Any], change: dict[str, Any]
) -> None:
    parent = finished(tmp_path, 2, **before)
    child = forked(parent, 2, tmp_path, **change)
    go_on(child, 4)
    assert not problems_of(child, recipe_in(child))
    asked = [
        row.transition_id
        for number in range(1, 5)
        if "annotate" in child.complete_stages(number)
        for row in rows_of(Annotation, child.read(number, "annotate", Annotation))
    ]
    assert len(asked) == len(set(asked)), "nobody is asked twice"
    rows = [
        row
        for number in range(1, 5)
        for stage in ("explore", "collect")
        if stage in child.complete_stages(number) and (number, stage) != (4, "collect")
        for row in rows_of(Transition, child.read(number, stage, Transition))
    ]
    fits = {row.transition_id for row in rows if row.split == "fit"}
    assert set(asked) == fits and len(fits) > 20
    learned = rows_of(Generation, child.read(4, "corpus", Generation))
    assert {row.generation_id.split("fit-", 1)[1] for row in learned} == fits
    assert any(row.output.startswith("Reasoning: because it is so") for row in learned)


def test_kept_rollouts_keep_the_fit_that_they_were_played_in(tmp_path: Path) -> None:
    made = experiment(method__recipe__explore__every=1)
    parent = begun(tmp_path / "parent", made)
    play(parent, 2, services_of(made))

    def kept(name: str, **changes: Any) -> RunDirectory:
        made = experiment_of(parent, name, changed(parent.method, **changes))
        return fork(parent, 1, made, tmp_path, keep_rollouts=True)

    rate = "roles__experience__optimizer__learning_rate"
    with pytest.raises(BadInput, match=rate.replace("__", ".")):
        kept("refused", **{rate: 0.5})
    child = kept("other", recipe__objective__scale_rewards="none", roles__actor__optimizer__learning_rate=0.5)
    assert {"update_experience", "collect"} <= set(child.complete_stages(2))
    play(child, 2)
    ours, theirs = (digests(run)["2/credit"] for run in (child, parent))
    assert ours != theirs and not problems_of(child, recipe_in(child))
    checkpoint = parent.path / "rounds/0002/update_experience/checkpoint"
    checkpoint.rename(checkpoint.with_name("pruned"))
    with pytest.raises(BadInput, match="was pruned: rounds/0002/update_experience/checkpoint"):
        kept("lost")
