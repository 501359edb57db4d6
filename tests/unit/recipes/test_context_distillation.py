"""Context distillation in whole rounds: who is taught what, and that nothing that is played or evaluated sees it."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from crl.audit.audit import problems_of
from crl.config import Method
from crl.errors import BadInput
from crl.records import (
    BankSnapshot,
    Episode,
    Evaluation,
    Generation,
    Metric,
    Retrieval,
    RetrievalCount,
    Sample,
    TeacherContext,
    TeacherLogprobs,
    TextEffect,
)
from crl.report.views import query
from crl.rounds.recipe import recipe_of, recorded_bank
from crl.text.prefixes import shared_prefix
from tests.unit.recipes.played import Played, Policy, Services, act, experiment

ROUNDS, FEW = 3, {"method__families__0__evaluation_seeds__count": 4}
TAUGHT = {"method__recipe__context_distillation": {"share": 0.2}}


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return Played(tmp_path_factory.mktemp("taught"), experiment(**TAUGHT, **FEW), ROUNDS)


def text_of(token_ids: list[int]) -> str:
    return "".join(chr(token) for token in token_ids if token >= 32)


def test_a_teacher_reads_what_a_guided_episode_would_and_nobody_is_shown_it(taught: Played) -> None:
    read = {(each.round, each.generation_id): each for each in taught.services.trainers["actor"].shown}
    seen = same = 0
    for number in range(1, ROUNDS + 1):
        rows = [row for row in taught.rows(Retrieval, "plan", number) if row.teaches]
        episodes = {row.episode_id: row for row in taught.rows(Episode, "collect", number)}
        records = {row.generation_id: row for row in taught.rows(Generation, "collect", number)}
        contexts = {row.generation_id: row for row in taught.rows(TeacherContext, "collect", number)}
        assert {row.episode_id for row in rows} == {row.episode_id for row in contexts.values()}
        free = {name for name, row in episodes.items() if row.stream == "free"}
        assert {row.episode_id for row in rows} == (free if number > 1 else set()), "the first bank is empty"
        guided = [row for row in episodes.values() if row.guided]
        for row in rows:
            episode = episodes[row.episode_id]
            assert not (row.chosen or episode.guided or episode.experiences)
            context, record = contexts[episode.generation_ids[0]], records[episode.generation_ids[0]]
            assert (context.entry_ids, context.content_digests) == ([row.entry_id], [row.content_digest])
            shown, behind = text_of(context.token_ids), record.token_ids[context.replaced_tokens :]
            assert "Advice: " in shown and "Advice: " not in text_of(record.token_ids)
            sample = read[number, record.generation_id]
            assert sample.token_ids == [*context.token_ids, *behind]
            assert sum(sample.loss_mask) == sum(record.loss_mask) and sample.loss_mask[len(context.token_ids)] == 1
            for other in guided:  # of its group, who was shown the same text: the prompt is that one's, id for id
                if other.group == episode.group and other.content_digests == context.content_digests:
                    own = records[other.generation_ids[0]]
                    assert own.token_ids[: own.loss_mask.index(1)] == context.token_ids
                    same += 1
            seen += 1
    assert seen == 2 * 8 and same
    assert problems_of(taught.run, taught.recipe) == []
    assert query(taught.run.path, "SELECT count(*) FROM retrievals JOIN episodes USING (episode_id) "
                 "WHERE teaches AND (guided OR chosen)")[1] == [(0,)]  # fmt: skip


def test_what_it_sampled_is_trained_with_its_own_and_the_teachers_log_probabilities(taught: Played) -> None:
    for number in range(2, ROUNDS + 1):
        records = {row.generation_id: row for row in taught.rows(Generation, "collect", number)}
        given = {row.generation_id: row for row in taught.rows(TeacherLogprobs, "teach", number)}
        samples = [row for row in taught.rows(Sample, "credit", number) if row.objective == "reverse_kl"]
        assert [row.generation_id for row in samples] == list(given)
        for sample in samples:
            record = records[sample.generation_id]
            assert (sample.token_ids, sample.loss_mask, sample.logprobs) == (
                record.token_ids, record.loss_mask, record.logprobs,
            )  # fmt: skip
            assert sample.teacher_logprobs == [-0.25] * sum(record.loss_mask)
        metrics = {row.name: row.value for row in taught.rows(Metric, "teach", number)}
        assert metrics["teacher_gap"] == pytest.approx(-0.5 + 0.25)
        assert metrics["teacher_tokens_read"] == sum(row.tokens_read for row in given.values())


def test_its_weight_gives_it_its_share_of_the_gradient(taught: Played) -> None:
    assert 3.0 / 0.5 * math.sqrt(0.2 / 0.8) > 2.0, "it would be more: it begins at 1 and doubles at most"
    trainer = taught.services.trainers["actor"]
    trained = [{each.objective: each.weight for each in batch} for batch in trainer.batches]
    assert [each.get("reverse_kl") for each in trained] == [None, 1.0, 1.0]
    assert trainer.factors == [{}, {"reverse_kl": 1.0}, {"reverse_kl": 2.0}]
    for number, factor in ((2, 1.0), (3, 2.0)):
        metrics = {row.name: row.value for row in taught.rows(Metric, "update_actor", number)}
        assert metrics["reverse_kl_factor"] == pytest.approx(factor)
        assert metrics["reverse_kl_share"] == pytest.approx((factor * 0.5) ** 2 / ((factor * 0.5) ** 2 + 3.0**2))


@pytest.mark.slow
def test_what_is_played_retrieved_written_and_evaluated_is_as_without_it(taught: Played, tmp_path: Path) -> None:
    """No update takes a step here, so all that a teacher could leak into would differ."""
    alone = Played(tmp_path, experiment(**FEW), ROUNDS)
    for number in range(1, ROUNDS + 1):
        for row_type, stage in (
            (RetrievalCount, "plan"), (Episode, "collect"), (Generation, "collect"), (BankSnapshot, "consolidate"),
            (Evaluation, "evaluate"),
        ):  # fmt: skip
            assert taught.rows(row_type, stage, number) == alone.rows(row_type, stage, number), (number, stage)
        shown = [row for row in taught.rows(Retrieval, "plan", number) if not row.teaches]
        assert shown == alone.rows(Retrieval, "plan", number)
        assert "teacher_contexts" not in alone.tables(number, "collect")
        samples = [row for row in taught.rows(Sample, "credit", number) if row.objective != "reverse_kl"]
        assert samples == alone.rows(Sample, "credit", number)


@pytest.mark.slow
def test_of_several_sequences_the_teacher_reads_each_behind_its_own_prompt(tmp_path: Path) -> None:
    """The actor thinks in parentheses, and later prompts have no thoughts: every turn is a sequence."""
    made = experiment(method__roles__actor__history="strip_thoughts", **TAUGHT, **FEW)
    services = Services(made)
    services._policies["actor"] = Policy(lambda read, generator: f"(so) {act(read, generator)}")
    run = Played(tmp_path, made, 2, services)
    records = {row.generation_id: row for row in run.rows(Generation, "collect", 2)}
    contexts = run.rows(TeacherContext, "collect", 2)
    assert any("-s" in context.generation_id for context in contexts)
    free = [row for row in run.rows(Episode, "collect", 2) if row.stream == "free"]
    assert [context.generation_id for context in contexts] == [name for row in free for name in row.generation_ids]
    for context in contexts:
        record = records[context.generation_id]
        assert context.replaced_tokens == record.loss_mask.index(1)
        shown, own = text_of(context.token_ids), text_of(record.token_ids[: context.replaced_tokens])
        same = shared_prefix(shown, own)
        behind = len(own) - same
        assert own[same:] == shown[len(shown) - behind :]
        assert "Advice: " in shown[: len(shown) - behind], "the experience is all that differs"
    assert {row.reason_code for row in run.rows(TeacherLogprobs, "teach", 2)} == {None}
    assert problems_of(run.run, run.recipe) == []


@pytest.mark.slow
def test_too_long_for_the_teacher_is_recorded_and_not_trained(tmp_path: Path) -> None:
    made = experiment(
        method__recipe__context_distillation={"teacher": "master"},
        method__roles__master={"model": "tiny", "context": 200, "sampling": {"max_new_tokens": 4}},
        **FEW,
    )
    services = Services(made)
    services.trainers["master"] = services.trainers["actor"]
    run = Played(tmp_path, made, 2, services)
    rows = run.rows(TeacherLogprobs, "teach", 2)
    kinds = {(row.reason_code, row.tokens_read <= 200, bool(row.teacher_logprobs)) for row in rows}
    assert kinds == {("context_limit", False, False), (None, True, True)}
    assert {row.role for row in rows} == {"master"}
    samples = [row for row in run.rows(Sample, "credit", 2) if row.objective == "reverse_kl"]
    assert {row.generation_id for row in samples} == {row.generation_id for row in rows if row.reason_code is None}


def test_where_rounds_overlap_the_next_one_waits_for_the_teacher() -> None:
    method = experiment(method__overlap=True, **TAUGHT).method
    stages = {stage.name: stage for stage in recipe_of(method).stages}
    assert not stages["teach"].second_track
    assert "teach" in {read.stage for read in stages["advantages"].reads}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"method__recipe__kind": "baseline"}, "keeps no bank"),
        ({"method__recipe__kind": "experience_only"}, "does not train the actor"),
        ({"method__recipe__guided_share": 1.0}, "free ones are taught"),
        ({"method__recipe__self_distillation": {"share": 0.8}}, "leaves nothing to the policy objective"),
        ({"method__recipe__context_distillation": {"teacher": "extractor"}}, "extractor is trained"),
    ],
)
def test_what_cannot_be_taught_is_refused(changes: dict[str, object], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        experiment(**{**TAUGHT, **changes})


def test_a_teacher_that_is_no_role_is_refused() -> None:
    with pytest.raises(BadInput, match="master"):
        experiment(method__recipe__context_distillation={"teacher": "master"})


@pytest.mark.slow
def test_a_teacher_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from crl.policies.sources import resolve_model
    from crl.recipes.complementary.ready import check_teacher

    tokenizer = AutoTokenizer.from_pretrained(resolve_model("tiny").path)

    def method() -> Method:
        return experiment(
            method__recipe__context_distillation={"teacher": "master"},
            method__roles__master={"model": str(tmp_path), "sampling": {"max_new_tokens": 4}},
        ).method

    shutil.copytree(resolve_model("tiny").path, tmp_path, dirs_exist_ok=True)
    check_teacher(method())
    tokenizer.add_tokens(["zebra"])
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(BadInput, match="1 tokens differ, 'zebra'"):
        check_teacher(method())


@pytest.mark.slow
def test_a_text_that_the_present_actor_gains_nothing_from_guides_no_training_and_comes_back(tmp_path: Path) -> None:
    rule = {"withdraw": 0.1, "decay": 0.6, "min_uses": 2, "max_effect": -2.0}
    run = Played(tmp_path, experiment(method__recipe__suppress=rule, **FEW), 5)
    withdrawn, back, evaluated = set[str](), set[str](), set[str]()
    for number in range(2, 6):
        effects = run.rows(TextEffect, "effects", number - 1)
        out = {row.content_digest for row in effects if row.withdrawn}
        assert out == {row.content_digest for row in effects if row.count >= 2 and row.mean <= 0.1}
        assert not any(row.suppressed for row in effects)
        used = {digest for row in run.rows(Episode, "collect", number) for digest in row.content_digests}
        assert used and not used & out
        back |= used & withdrawn
        withdrawn |= out
        held = {row.entry_id: row.content_digest for row in recorded_bank(run.run, run.recipe, number - 1).entries()}
        shown = [name for row in run.rows(Evaluation, "evaluate", number - 1) for name in row.entry_ids]
        evaluated |= {held[name] for name in shown} & out
    assert back and evaluated
    assert problems_of(run.run, run.recipe) == []
    assert query(run.run.path, "SELECT count(*) > 0 AND bool_and(withdrawn) FROM suppressions")[1] == [(True,)]
