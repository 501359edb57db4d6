"""What the store of transitions finds: the nearest in their order, for fits of other episodes alone, of both pools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crl.policies.embedders import LexicalEmbedder
from crl.recipes.dreamgym import corpus
from crl.recipes.dreamgym.prompts import situation_of
from crl.recipes.dreamgym.rows import PoolItem, Prediction, Transition, TransitionVector
from crl.recipes.dreamgym.store import Store, searched_by
from crl.records import Generation, Metric, table_of
from tests.recipes.dreamgym.dreamgym_played import DreamServices, experiment
from tests.unit.recipes.played import Played

TOP_K = 4


def transition(name: str, episode: str, family: str = "lake") -> Transition:
    return Transition(
        transition_id=name, round=1, source="real", split="fit", policy="random", family=family, environment_seed=1,
        episode_id=episode, turn=0, goal="", history=[], observation=name, action="up", actions=["up"], reasoning=None,
        reasoning_source="none", next_observation="", next_actions=[], feedback="", legal=True, outcome="continues",
        reward=0.0, prediction_id=None,
    )  # fmt: skip


class Filled:
    """A stage whose store holds transitions with the vectors that they are given; a query has that of its words."""

    def __init__(self, rows: Sequence[Transition], vectors_ND: NDArray[np.float32]) -> None:
        self.method = experiment(method__recipe__store__top_k=TOP_K).method
        self._vectors = {
            f"{row.observation}\n{row.action}": vector for row, vector in zip(rows, vectors_ND, strict=True)
        }
        self.services = SimpleNamespace(embedder=lambda: self)
        items = [
            PoolItem(
                pool="real", transition_id=row.transition_id, family=row.family, round=1, stage="explore", entered=1
            )
            for row in rows
        ]
        vectors = [
            TransitionVector(transition_id=row.transition_id, vector=[float(value) for value in vector])
            for row, vector in zip(rows, vectors_ND, strict=True)
        ]
        self._tables: dict[type, Any] = {
            PoolItem: table_of(PoolItem, items),
            Transition: table_of(Transition, rows),
            TransitionVector: table_of(TransitionVector, vectors),
        }

    def table(self, row_type: type, name: str) -> Any:
        return self._tables[row_type]

    def table_at(self, row_type: type, number: int, stage: str) -> Any:
        return self._tables[row_type]

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.stack([self._vectors[text] for text in texts])

    def cuts(self, texts: Sequence[str]) -> list[bool]:
        return [False] * len(texts)


def units(vectors_ND: NDArray[np.float64]) -> NDArray[np.float32]:
    return (vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)).astype(np.float32)


def test_the_nearest_transitions_of_a_family_are_in_the_order_of_their_similarity() -> None:
    rng = np.random.default_rng(1)
    rows = [transition(f"t{at}", f"e{at // 5}", ("lake", "pond")[at % 2]) for at in range(40)]
    vectors_ND = units(rng.standard_normal((40, 8)))
    vectors_ND[30] = vectors_ND[10]  # equally near: the oldest first
    ctx: Any = Filled(rows, vectors_ND)
    lakes = [at for at in range(40) if at % 2 == 0]
    found = Store(ctx, ctx.method.recipe.store).nearest("lake", [situation_of(rows[at]) for at in lakes])
    for at, near in zip(lakes, found, strict=True):
        cosines = {other: float(vectors_ND[other].astype(float) @ vectors_ND[at].astype(float)) for other in lakes}
        expected = sorted(lakes, key=lambda other: (-round(cosines[other], 9), other))[:TOP_K]
        assert [row.transition_id for row in near] == [f"t{other}" for other in expected]


def test_a_fit_is_shown_the_nearest_of_other_episodes_where_its_own_are_nearer() -> None:
    rng = np.random.default_rng(2)
    episode_N = np.array([at // 6 for at in range(36)])
    # The steps of an episode are close to each other, and to no other episode's.
    vectors_ND = units(rng.standard_normal((6, 8))[episode_N] + 0.05 * rng.standard_normal((36, 8)))
    rows = [transition(f"t{at}", f"e{episode_N[at]}") for at in range(36)]
    ctx: Any = Filled(rows, vectors_ND)
    fitted = rows[3:9]  # the store also holds steps of these episodes that the fit does not learn
    found = corpus._neighbors(ctx, fitted)
    assert list(found) == [f"t{at}" for at in range(3, 9)]
    for at in range(3, 9):
        cosines_N = vectors_ND.astype(float) @ vectors_ND[at].astype(float)
        nearest = [int(other) for other in np.argsort(-cosines_N) if other != at]
        assert set(episode_N[nearest[:TOP_K]]) == {episode_N[at]}, "those of its own episode would be shown"
        expected = [f"t{other}" for other in nearest if episode_N[other] != episode_N[at]][:TOP_K]
        assert [row.transition_id for row in found[f"t{at}"]] == expected


def placed(texts: Sequence[str]) -> NDArray[np.float32]:
    """Vectors by which symbol is where: maps of the same symbols are different words."""
    return LexicalEmbedder().embed([" ".join(f"{ord(sign)}x{at}" for at, sign in enumerate(text)) for text in texts])


class PlaceServices(DreamServices):
    """The store of a run is searched by :func:`placed`."""

    def embedder(self) -> Any:
        return SimpleNamespace(embed=placed, cuts=LexicalEmbedder().cuts)


Shown = list[tuple[int, Transition, list[Transition]]]
"""Round, transition that is learned, and what its prompt may show."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Played, Shown]]:
    """Two rounds in which predictions are shown transitions of both pools, and what the fits were shown."""
    shown: Shown = []
    learn = corpus.demonstrated

    def noted(chat: Any, method: Any, row: Transition, neighbors: Sequence[Transition], *more: Any) -> Any:
        shown.append((noted.round, row, list(neighbors)))  # type: ignore[attr-defined]
        return learn(chat, method, row, neighbors, *more)

    whole = corpus.corpus

    def begun(ctx: Any) -> None:
        noted.round = ctx.round  # type: ignore[attr-defined]
        whole(ctx)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "demonstrated", noted)
        patch.setattr(corpus, "corpus", begun)
        made = experiment(method__recipe__store__search="both", method__recipe__store__top_k=TOP_K)
        run = Played(tmp_path_factory.mktemp("both"), made, 2, PlaceServices(made))
    yield run, shown


def stored(run: Played, number: int) -> list[Transition]:
    """What the pools hold that are searched in a round, in their order."""
    rows = {
        row.transition_id: row
        for of in range(1, number + 1)
        for stage in ("explore", "collect")
        for row in run.rows(Transition, stage, of)
    }
    return [rows[item.transition_id] for item in run.rows(PoolItem, "gather", number) if item.pool != "held_out"]


def cosines(asked: Transition, rows: Sequence[Transition]) -> NDArray[np.float64]:
    """How similar they are to a transition in state and action."""
    texts = [f"{row.observation}\n{row.action}" for row in (asked, *rows)]
    vectors_ND = placed(texts).astype(float)
    return np.asarray(vectors_ND[1:] @ vectors_ND[0])


@pytest.mark.slow
def test_a_fit_of_a_run_never_shows_the_step_itself_or_another_of_its_episode(both: tuple[Played, Shown]) -> None:
    run, shown = both
    tempting = 0
    for number, row, neighbors in shown:
        assert len(neighbors) == TOP_K and row.episode_id not in {each.episode_id for each in neighbors}
        others = [each for each in stored(run, number) if each.episode_id != row.episode_id]
        best = sorted(cosines(row, others), reverse=True)
        assert cosines(row, neighbors) == pytest.approx(np.array(best[:TOP_K]), abs=1e-6), "the nearest of the others"
        own = [each for each in stored(run, number) if each.episode_id == row.episode_id and each != row]
        tempting += bool(own) and max(cosines(row, own)) > best[TOP_K - 1] + 1e-6
    assert {number for number, _, _ in shown} == {1, 2} and tempting > 0, "some would have been shown their own"


def test_predictions_are_shown_the_nearest_of_both_pools_where_both_are_searched(both: tuple[Played, Shown]) -> None:
    run, _ = both
    pools, sources = stored(run, 2), {row.transition_id: row.source for row in stored(run, 2)}
    steps = {row.transition_id: row for stage in ("explore", "collect") for row in run.rows(Transition, stage, 2)}
    steps |= {row.transition_id: row for row in run.rows(Transition, "explore", 1)}
    made = {row.prediction_id: row for row in steps.values() if row.prediction_id is not None}
    places, kinds = {row.transition_id: row for row in pools}, set()
    for stage in ("validate", "collect"):
        for prediction in run.rows(Prediction, stage, 2):
            if prediction.reason_code != "ok":
                continue
            asked = steps[prediction.held_to] if prediction.held_to else made[prediction.prediction_id]
            near = cosines(asked, [places[name] for name in prediction.neighbors])
            best = sorted(cosines(asked, pools), reverse=True)[:TOP_K]
            assert near == pytest.approx(np.array(best), abs=1e-6), "and in the order of their similarity"
            kinds |= {sources[name] for name in prediction.neighbors}
    assert kinds == {"real", "synthetic"}


def test_predictions_are_never_fitted_where_both_pools_are_searched(both: tuple[Played, Shown]) -> None:
    run, _ = both
    real = {row.transition_id for row in stored(run, 2) if row.source == "real"}
    fitted = {row.generation_id.split("fit-", 1)[1] for row in run.rows(Generation, "corpus", 2)}
    assert fitted == real and len(stored(run, 2)) > len(real)


READ = 4
"""Characters that :class:`Beginning` reads."""


class Beginning:
    """An embedder that reads only the beginning of a text."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return LexicalEmbedder().embed([text[:READ] for text in texts])

    def cuts(self, texts: Sequence[str]) -> list[bool]:
        return [len(text) > READ for text in texts]


class BeginningServices(DreamServices):
    """The store of a run is searched by :class:`Beginning`."""

    def embedder(self) -> Any:
        return Beginning()


@pytest.mark.slow
def test_an_action_counts_however_long_the_observation_is(tmp_path: Path) -> None:
    made = experiment(method__recipe__store__top_k=TOP_K)
    run = Played(tmp_path, made, 1, BeginningServices(made))
    vectors = {row.transition_id: tuple(row.vector) for row in run.rows(TransitionVector, "gather", 1)}
    actions: dict[tuple[float, ...], set[str]] = {}
    for row in run.rows(Transition, "explore", 1):
        actions.setdefault(vectors[row.transition_id], set()).add(row.action)
    assert len(actions) >= 4 and all(len(named) == 1 for named in actions.values()), "no two actions are alike"
    shown = run.rows(Prediction, "validate", 1)
    steps = {row.transition_id: row for row in run.rows(Transition, "explore", 1)}
    assert shown and all(steps[row.neighbors[0]].action == steps[row.held_to or ""].action for row in shown)
    [metric] = run.rows(Metric, "gather", 1)
    assert (metric.name, metric.value) == ("transitions_cut_by_embedder", 1.0)
    assert metric.alarm is not None and "100% of the new transitions" in metric.alarm


def test_a_text_that_is_read_whole_has_the_state_first() -> None:
    short, long = transition("A", "e1"), transition("A long one", "e1")
    texts, cuts = searched_by(Beginning(), [situation_of(row) for row in (short, long)])  # type: ignore[arg-type]
    assert (texts, cuts) == (["A\nup", "up\nA long one"], [False, True])
