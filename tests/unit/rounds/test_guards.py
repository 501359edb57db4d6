"""Whether a run goes on: by what its complete rounds recorded, and by nothing else."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

from crl.config import Runtime
from crl.records import Evaluation, Metric, table_of
from crl.rounds.alarms import COLLAPSED
from crl.rounds.evaluate import WITHOUT_BANK
from crl.rounds.fall_back import FALL_BACK
from crl.rounds.guards import Guards
from crl.run.manifest import Manifest

SECONDS = 0.9


class Record:
    """Rounds with held-out success, tokens and seconds."""

    def __init__(self, success: dict[int, float], tokens: dict[int, int], *, overlap: bool = False) -> None:
        self.success, self.tokens = success, tokens
        self.method = SimpleNamespace(overlap=overlap, families=[SimpleNamespace(name="lake")], on_collapse="go_on")
        self.path = Path("run")
        self.reads = 0

    def rounds(self):
        return sorted({*self.success, *self.tokens})

    def complete_stages(self, number):
        return [*(["evaluate"] if number in self.success else []), *(["health"] if number in self.tokens else [])]

    def is_complete(self, number, stage):
        return stage in self.complete_stages(number)

    def manifest(self, number, stage):
        return Manifest.model_construct(provenance={"seconds": SECONDS})

    def read(self, number, stage, row_type):
        self.reads += 1
        if row_type is Metric:
            values = {
                "actor_tokens_sampled": self.tokens[number] - 3.0,
                "extractor_tokens_sampled": 3.0,
                "episode_tokens_sampled": 1000.0,
                "actor_tokens_read": 5000.0,
            }
            return table_of(Metric, [Metric(round=number, stage=stage, name=name, value=value, alarm=None)
                                     for name, value in values.items()])  # fmt: skip
        won = round(self.success[number] * 10)
        return table_of(Evaluation, [played(number, game, game < won) for game in range(10)])


def played(number: int, game: int, success: bool) -> Evaluation:
    filled = {"round": number, "family": "lake", "condition": WITHOUT_BANK, "success": success}
    kinds = {"int": 0, "float": 0.0, "str": "x", "bool": False}
    values = {}
    for field in fields(Evaluation):
        empty = next((value for kind, value in kinds.items() if f"A[{kind}," in str(field.type)), None)
        values[field.name] = filled.get(field.name, empty)
    return Evaluation(**values)


def guards(record: Record, **stop_at: float) -> Guards:
    return Guards(record, Runtime(stop_at=stop_at))


def test_success_of_the_newest_evaluated_round_stops_a_run():
    record = Record({0: 0.1, 2: 0.8, 4: 0.7}, dict.fromkeys(range(6), 10))
    asking = guards(record, success=0.8)
    assert [number for number in range(7) if asking.stop_before(number)] == [3, 4]
    stop = asking.stop_before(3)
    assert (stop.round, stop.setting) == (2, "runtime.stop_at.success")
    assert "round 2 is 0.800, asked for 0.8" in stop.in_words


def test_tokens_of_every_role_are_counted_once_over_all_complete_rounds():
    asking = guards(Record({}, {1: 10, 2: 20, 3: 30}), tokens=30)
    assert [number for number in range(5) if asking.stop_before(number)] == [3, 4]
    assert "30 tokens" in asking.stop_before(3).reason
    assert "60 tokens" in asking.stop_before(4).reason


def test_hours_are_those_that_the_manifests_tell():
    record = Record({0: 0.0}, {1: 1, 2: 1})
    assert guards(record, hours=2 * SECONDS / 3600).stop_before(1) is None
    assert guards(record, hours=2 * SECONDS / 3600).stop_before(2).setting == "runtime.stop_at.hours"


def test_where_rounds_overlap_the_round_that_runs_beside_counts_for_nobody():
    record = Record({}, {1: 10, 2: 20, 3: 30}, overlap=True)
    asking = guards(record, tokens=30)
    assert [number for number in range(6) if asking.stop_before(number)] == [4, 5]
    told = "stopped after round 3: after round 2 30 tokens were generated in training, asked for 30"
    assert asking.stop_before(4).in_words == f"{told} (runtime.stop_at.tokens)"


def test_without_the_setting_nothing_is_read():
    record = Record({1: 1.0}, {1: 10})
    assert Guards(record, Runtime()).stop_before(2) is None
    assert record.reads == 0


def test_a_round_is_read_once():
    record = Record({1: 0.5, 2: 0.5}, {1: 10, 2: 10})
    asking = guards(record, success=0.9, tokens=1000)
    for number in (2, 3, 3):
        asking.stop_before(number)
    assert record.reads == 4


@pytest.mark.parametrize(("name", "value"), [("success", 0), ("success", 1.1), ("tokens", 0), ("hours", 0)])
def test_what_can_never_or_always_be_reached_is_refused(name, value):
    with pytest.raises(ValueError, match=name):
        Runtime(stop_at={name: value})


def test_a_collapse_stops_a_run_unless_it_falls_back(monkeypatch):
    record = Record({}, {1: 10, 2: 20})
    found = {COLLAPSED: 1.0}
    monkeypatch.setattr(record, "read", lambda number, stage, row_type: table_of(Metric, [
        Metric(round=number, stage=stage, name=name, value=value, alarm=f"{name}: why") for name, value in found.items()
    ]))  # fmt: skip
    assert Guards(record, Runtime()).stop_before(3) is None, "nobody asked for it"
    for asked in ("stop", "fall_back"):
        record.method.on_collapse = asked
        stop = Guards(record, Runtime()).stop_before(3)
        assert (stop.round, stop.setting, stop.reason) == (2, "method.on_collapse", "collapsed: why")
        assert "crl fork" in stop.next_step
    found[FALL_BACK] = 1.0
    assert Guards(record, Runtime()).stop_before(3) is None
    record.method.on_collapse = "stop"  # a fork of a run that falls back
    assert Guards(record, Runtime()).stop_before(3) is not None
    found[COLLAPSED] = 0.0
    del found[FALL_BACK]
    assert Guards(record, Runtime()).stop_before(3) is None


def test_what_the_newest_rounds_may_fall_back_to_is_kept():
    record = Record({1: 0.5, 2: 0.1, 3: 0.6, 4: 0.2}, {})
    assert Guards(record, Runtime()).rounds_kept() == {3}
    record.method.on_collapse = "fall_back"
    assert Guards(record, Runtime()).rounds_kept() == {1, 3}
