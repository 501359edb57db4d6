"""What a round of Experiential RL says about its reflections."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from crl.policies.embedders import LexicalEmbedder
from crl.recipes.erl.health import reflection_metrics
from crl.recipes.erl.rows import Reflection
from crl.records import Metric
from crl.rounds.alarms import ROUNDS, health_metrics
from crl.rounds.health import FEWEST_EXPERIENCES
from tests.recipes.erl.erl_played import ErlServices, experiment
from tests.unit.recipes.played import Played


def written(*texts: str | None) -> list[Reflection]:
    """Reflections of these texts; None: malformed."""
    return [
        Reflection(
            reflection_id=f"f-{place}", round=1, family="lake", revision=1, episode_id=str(place),
            retry_id=f"{place}-a2", reward=0.0, feedback="", entry_ids=[], content_digests=[],
            reason_code="ok" if text is not None else "empty_text", text=text, turns=1, turns_shown=1,
            generation_id=f"g-f-{place}",
        )
        for place, text in enumerate(texts)
    ]  # fmt: skip


def told(rows: list[Reflection]) -> str | None:
    """What is said of a run in which every round has these reflections."""
    metrics: dict[str, float] = {}
    alarms = []
    for number in range(1, ROUNDS + 1):
        found = health_metrics(reflection_metrics(rows), metrics, {"actor"}, round=number)
        metrics = {row.name: row.value for row in found}
        alarms = [row.alarm for row in found if row.name == "collapsed"]
    return alarms[0]


def test_an_actor_that_hardly_ever_fails_has_not_collapsed() -> None:
    few = written(*["go left"] * (FEWEST_EXPERIENCES - 1), None)
    assert "experiences_one_text" not in reflection_metrics(few) and told(few) is None
    said = told(written(*["go left"] * FEWEST_EXPERIENCES))
    assert said is not None and "one text is more than 80% of the new experiences or reflections" in said


def test_malformed_reflections_are_no_text() -> None:
    found = reflection_metrics(written(*["go left"] * 6, "go up", "go down", *[None] * 8))
    assert (found["experiences_one_text"], found["experiences_distinct"], found["share_malformed"]) == (
        6 / 8,
        3 / 8,
        0.5,
    )


class Short(LexicalEmbedder):
    """Says that it reads only the beginning of every text."""

    def cuts(self, texts: Sequence[str]) -> list[bool]:
        return [True] * len(texts)


class ShortServices(ErlServices):
    def embedder(self) -> Short:
        return Short()


@pytest.mark.slow
@pytest.mark.parametrize("order", ["similarity", "recency"])
def test_memories_that_the_embedder_cuts_are_an_alarm_where_similarity_decides(tmp_path: Path, order: str) -> None:
    made = experiment(method__recipe__memory__order=order)
    run = Played(tmp_path, made, 1, ShortServices(made))
    [found] = [row for row in run.rows(Metric, "health", 1) if row.name == "experiences_cut_by_embedder"]
    assert found.value == 1.0 and (found.alarm is not None) == (order == "similarity")
    assert found.alarm is None or "(memory.embedder), or lower reflect.max_characters" in found.alarm
