"""Behavior log-probabilities of what a server sampled from a part of its distribution: computed once, read everywhere.

The models are told what to say; their log-probabilities are -0.5 by the server, and by the trainer what a counter says,
so that each pass over a sequence would give others.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from crl.audit.audit import problems_of
from crl.audit.without import why_needed
from crl.config import SamplingConfig
from crl.credit.samples import sample_of
from crl.errors import DataCheckFailed, RecordDamaged
from crl.protocols import Reading, Sampled
from crl.records import SERVER, TRAINER, BehaviorLogprobs, Generation, Metric, Sample, Weights
from crl.report.views import query, write_catalog
from crl.rounds.recipe import recipe_of
from tests.marks import sampled
from tests.unit.recipes.played import Played, Policy, Services, Session, act, experiment, write
from tests.unit.run.killed import run_killed

CUT = {
    f"method__roles__{role}__{key}": value
    for role in ("actor", "extractor")
    for key, value in {"engine": "vllm", "sampling": {"max_new_tokens": 4, "top_p": 0.9, "top_k": 20}}.items()
}
ROUNDS = 3
STAGES = ("behavior_logprobs_actor", "behavior_logprobs_extractor")


class CutSession(Session):
    """A server's: its log-probabilities are of what the cut left."""

    def sample(self, rows: Sequence[int], sampling: SamplingConfig, answers: Any = None) -> dict[int, Sampled]:
        found = super().sample(rows, sampling, answers)
        return {row: dataclasses.replace(turn, renormalized=sampling.cuts) for row, turn in found.items()}


class CutPolicy(Policy):
    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> Session:
        return CutSession(prompts, self._answer, seeds)


class Reader:
    """A trainer that gives other values each time that it is asked, and counts how often."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._values, self.reads = trainer, itertools.count(1), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    def read(self, samples: Sequence[Sample], *, likeliest: int = 0) -> dict[str, Reading]:
        self.reads += len(samples)
        assert not any(value for each in samples for value in each.logprobs), "what the server told is not used"
        return {
            each.sample_id: Reading([-next(self._values) / 1000 for _ in range(sum(each.loss_mask))], [], [])
            for each in samples
        }


class CutServices(Services):
    def __init__(self, made: Any) -> None:
        super().__init__(made)
        self._policies = {"actor": CutPolicy(act), "extractor": CutPolicy(write)}
        self.trainers: Any = {role: Reader(trainer) for role, trainer in self.trainers.items()}
        self.lent: list[tuple[str, str]] = []

    def trainer(self, role: str, weights: Weights) -> Any:
        self.lent.append((role, weights.weights_digest))
        return super().trainer(role, weights)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    made = experiment(**CUT)
    yield Played(tmp_path_factory.mktemp("behavior"), made, ROUNDS, CutServices(made))


def sources(stage: str) -> list[str]:
    return ["collect"] if stage == STAGES[0] else ["distill"]


def test_each_round_has_the_rows_of_all_that_it_sampled_by_its_own_weights(run: Played) -> None:
    for number, stage in itertools.product(range(1, ROUNDS + 1), STAGES):
        sampled = [row for name in sources(stage) for row in run.rows(Generation, name, number)]
        assert {row.logprobs_by for row in sampled} == {SERVER}, "the record keeps who computed them"
        assert {value for row in sampled for value in row.logprobs} == {0.0, -0.5}
        rows = run.rows(BehaviorLogprobs, stage, number)
        assert [row.generation_id for row in rows] == [row.generation_id for row in sampled]
        for record, row in zip(sampled, rows, strict=True):
            assert row.weights_digest == record.weights_digest
            assert [value < 0 for value in row.logprobs] == [bool(mask) for mask in record.loss_mask]
        metrics = {row.name: row.value for row in run.rows(Metric, stage, number)}
        assert metrics["sequences"] == len(rows) and metrics["tokens"] == sum(sum(row.loss_mask) for row in sampled)
    assert problems_of(run.run, run.recipe) == []


def test_samples_have_the_stored_values_in_whatever_round_they_are_trained(run: Played) -> None:
    stored = {
        row.generation_id: row.logprobs
        for number, stage in itertools.product(range(1, ROUNDS + 1), STAGES)
        for row in run.rows(BehaviorLogprobs, stage, number)
    }
    ages = set()
    for number in range(1, ROUNDS + 1):
        for sample in run.rows(Sample, "credit", number):
            assert sample.logprobs == stored[sample.generation_id]
            ages.add((sample.role, number - int(sample.source.partition("/")[0])))
    assert ("actor", 0) in ages and {age for role, age in ages if role == "extractor"} & {1, 2}, ages
    for role, trainer in run.services.trainers.items():
        trained = [sample for batch in trainer.batches for sample in batch]
        assert trained and all(sample.logprobs == stored[sample.generation_id] for sample in trained), role


def test_every_sequence_is_read_once_and_updates_read_none(run: Played) -> None:
    for stage, trainer in zip(STAGES, run.services.trainers.values(), strict=True):
        rows = [row for number in range(1, ROUNDS + 1) for row in run.rows(BehaviorLogprobs, stage, number)]
        assert trainer.reads == len(rows) == len({row.generation_id for row in rows})


def test_what_was_read_is_in_the_manifest(run: Played) -> None:
    inputs = run.run.manifest(2, "credit").digested.inputs
    of_outputs = {sample.source.partition("/")[0] for sample in run.rows(Sample, "credit", 2) if sample.role != "actor"}
    assert {f"0002/{STAGES[0]}", *(f"{number}/{STAGES[1]}" for number in of_outputs)} <= inputs.keys() and of_outputs
    assert "0002/behavior_logprobs_actor" not in run.run.manifest(2, "distill").digested.inputs


def test_a_run_does_not_go_on_without_rows_that_a_later_round_may_train(run: Played) -> None:
    why = why_needed(run.run, run.recipe, f"rounds/0001/{STAGES[1]}/behavior_logprobs.parquet")
    assert why is not None and "any later round may read" in why


def test_sql_shows_them_in_place_of_the_servers(run: Played, tmp_path: Path) -> None:
    sql = (
        "SELECT generation_id, logprobs, logprobs_by FROM generations WHERE round = 2 AND stage = 'collect' ORDER BY 1"
    )
    stored = {row.generation_id: row.logprobs for row in run.rows(BehaviorLogprobs, STAGES[0], 2)}
    _, rows = query(run.run.path, sql)
    assert {name: list(values) for name, values, _ in rows} == stored and {by for *_, by in rows} == {TRAINER}
    import duckdb

    write_catalog(run.run.path)
    with duckdb.connect(str(run.run.path / "catalog.duckdb"), read_only=True) as catalog:
        assert catalog.execute(sql).fetchall() == rows


def test_a_rule_holds_what_the_rows_say(tmp_path: Path) -> None:
    made = experiment(**CUT)
    services = CutServices(made)
    services.trainers["actor"].read = lambda samples: {
        each.sample_id: Reading([0.5] * sum(each.loss_mask), [], []) for each in samples
    }
    with pytest.raises(DataCheckFailed, match="finite and not positive"):
        Played(tmp_path, made, 1, services)


@pytest.mark.parametrize("role", sampled(["actor", "extractor"], 2))
def test_killed_in_the_middle_of_the_stage_and_resumed_it_is_the_run_that_nobody_disturbed(
    run: Played, tmp_path: Path, role: str
) -> None:
    assert not run_killed(_killed_by_its_first_reading, tmp_path, role)
    left = list((tmp_path / "played/rounds/0001").glob(f".tmp-behavior_logprobs_{role}-*"))
    assert left, "it was being written"
    undisturbed = {key: digest for key, digest in run.digests().items() if key[0] in "01"}
    resumed = Played(tmp_path, experiment(**CUT), 1, CutServices(experiment(**CUT)))
    assert resumed.digests() == undisturbed and problems_of(resumed.run, resumed.recipe) == []


def _killed_by_its_first_reading(root: Path, role: str) -> None:
    services = CutServices(experiment(**CUT))
    services.trainers[role].read = lambda samples: os.kill(os.getpid(), signal.SIGKILL)
    Played(root, experiment(**CUT), 1, services)


def test_nothing_is_trained_on_what_a_server_told_of_a_cut(run: Played) -> None:
    record = run.rows(Generation, "collect", 1)[0]
    for objective, told in (("grpo", True), ("nll", False)):
        try:
            sample_of(record, round=1, role="actor", objective=objective, reward=0, advantage=1, weight=1)
        except RecordDamaged as error:
            assert told and "behavior_logprobs" in str(error)
        else:
            assert not told


def test_weights_that_did_not_sample_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import crl.rounds.behavior as behavior

    whole = behavior.weights_of
    other = {"weights_digest": "f" * 64}
    monkeypatch.setattr(behavior, "weights_of", lambda *args: dataclasses.replace(whole(*args), **other))
    made = experiment(**CUT)
    with pytest.raises(RecordDamaged, match="was sampled with the weights"):
        Played(tmp_path, made, 1, CutServices(made))


# -- which stages there are ----------------------------------------------------------------------------------------


def names(**changes: Any) -> list[str]:
    return [stage.name for stage in recipe_of(experiment(**changes).method).stages]


def test_there_is_no_such_stage_where_nothing_is_cut() -> None:
    plain = {key: value for key, value in CUT.items() if key.endswith("engine")}
    for changes in ({}, plain, {key: value for key, value in CUT.items() if key not in plain}):
        assert names(**changes) == names()


def test_one_role_that_cuts_has_one() -> None:
    only = {key: value for key, value in CUT.items() if "__actor__" in key}
    assert [name for name in names(**only) if name not in names()] == [STAGES[0]]


def test_samples_wait_for_them_and_distilling_does_not() -> None:
    found = names(**CUT, method__recipe__merge__every=2)
    assert found.index("merge") < found.index(STAGES[0]) < found.index("credit")
    assert found.index(STAGES[1]) < found.index("credit")


def test_roles_of_one_set_of_weights_share_one() -> None:
    shared = {**CUT, "method__roles__extractor": {"weights": "actor", "sampling": {"top_p": 0.9}}}
    for key in ("method__roles__extractor__engine", "method__roles__extractor__sampling"):
        del shared[key]
    recipe = recipe_of(experiment(**shared).method)
    [stage] = [stage for stage in recipe.stages if BehaviorLogprobs in stage.writes]
    assert stage.name == STAGES[0] and {read.stage for read in stage.reads} >= {"collect", "distill"}


def test_where_rounds_overlap_each_is_on_the_track_of_what_it_reads() -> None:
    recipe = recipe_of(experiment(**CUT, method__overlap=True).method)
    tracks = {stage.name: stage.second_track for stage in recipe.stages if BehaviorLogprobs in stage.writes}
    assert tracks == {STAGES[0]: False, STAGES[1]: True}
    stages = {stage.name: stage for stage in recipe.stages}
    assert STAGES[0] in {read.stage for read in stages["advantages"].reads}


def test_answers_of_two_rounds_before_have_a_stage_of_their_own() -> None:
    asks = {"method__rollout__search_and_ask": {"train_answers": True}}
    prompt = {"system": "Answer.", "first": "{question} {experience} {goal} {observation}"}
    made = experiment(**CUT, **asks, method__overlap=True, method__prompts__ask=prompt)
    recipe = recipe_of(made.method)
    found = {stage.name: stage for stage in recipe.stages if BehaviorLogprobs in stage.writes}
    assert found.keys() == {STAGES[0], f"{STAGES[1]}_collect", f"{STAGES[1]}_distill"}
    of_answers = found[f"{STAGES[1]}_collect"]
    assert not of_answers.second_track and of_answers.read("extractor").offset == -2
    assert found[f"{STAGES[1]}_distill"].read("extractor").offset == -1
    assert {*found} <= {read.stage for read in recipe.stage(made.method, 1, "credit").reads}


def test_further_draws_are_read_with_the_first() -> None:
    recipe = recipe_of(experiment(**CUT, method__rollout__dynamic_sampling={"max_draws": 2}).method)
    method = experiment(**CUT, method__rollout__dynamic_sampling={"max_draws": 2}).method
    stage = recipe.stage(method, 1, STAGES[0])
    assert {(1, "collect"), (1, "collect_2")} <= set(recipe.inputs(method, 1, stage))
    assert recipe.behavior_stages(method, 1, "collect_2") == [STAGES[0]]


def test_verdicts_and_trials_are_not_read_for_nothing_trains_them() -> None:
    critic = {"system": "Judge.", "first": "Think of {experience} for {goal} {observation} at {success_rate}"}
    more = {"method__recipe__actor_critic": {}, "method__prompts__critic": critic, "method__recipe__trial": {}}
    recipe = recipe_of(experiment(**CUT, **more).method)
    [stage] = [stage for stage in recipe.stages if stage.name == STAGES[0]]
    assert {read.stage for read in stage.reads} == {"collect", "update_actor"}
