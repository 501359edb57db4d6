"""Every suite passes what is right, and names table, rule and row of what is not."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import crl.records as r
from crl.checks import check_tables, suites
from crl.checks.stage import summarize
from crl.checks.suites import SQL, row_types, suite_of
from crl.errors import DataCheckFailed
from crl.records import ROW_TYPES, Row, Rules, schema_of, table_of
from tests.marks import sampled
from tests.unit.checks import example_rows as examples

Rows = dict[type[Row], list[Row]]


def _tables(rows: Rows) -> dict[type[Row], pa.Table]:
    return {row_type: table_of(row_type, listed) for row_type, listed in rows.items()}


def _changed(rows: Rows, row_type: type[Row], index: int, **changes: Any) -> Rows:
    listed = list(rows[row_type])
    listed[index] = dataclasses.replace(listed[index], **changes)  # type: ignore[type-var]
    return {**rows, row_type: listed}


def test_every_record_type_has_a_suite_with_rules() -> None:
    # what an outside recipe brought stands behind the project's own: another test in this process may have loaded one
    assert tuple(row_types().values())[: len(ROW_TYPES)] == ROW_TYPES
    assert all(len(suite_of(table)["expectations"]) > 3 for table in row_types())


@pytest.mark.parametrize("query", ["SELECT n.row FROM noted n JOIN episods e USING (id)", "SELECT n.row FROM note n"])
def test_a_rule_between_tables_names_tables(query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No stage would be held against it, and nobody would know."""

    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Noted(Row):
        table: ClassVar[str] = "noted"
        rules: ClassVar[Rules] = Rules(key=("id",), between={"a note is of an episode": query})

    monkeypatch.setitem(suites.brought, "noted", Noted)
    with pytest.raises(ValueError, match="is no table"):
        suites.suite_of("noted")


@pytest.mark.parametrize("stage", examples.STAGES, ids=lambda stage: stage.__name__)
def test_sound_rows_pass(stage: Any) -> None:
    rows = stage()
    results = check_tables(_tables(rows), where="here")
    assert [result.table for result in results] == [t.table for t in rows]
    assert all(result.success and result.expectations > 1 for result in results)
    assert "seconds" not in results[0].record()


def test_empty_tables_pass_and_no_tables_pass() -> None:
    empty = {row_type: schema_of(row_type).empty_table() for row_type in ROW_TYPES}
    assert all(result.success for result in check_tables(empty, where="here"))
    assert check_tables({}, where="here") == []


# (stage, row type, row, change, a part of the rule that must be named)
BREACHES: list[tuple[Any, type[Row], int, dict[str, Any], str]] = [
    (examples.plan, r.Task, 2, {"episode_id": "r0001-room-g0000-m0001"}, "episode_id is unique"),
    (examples.plan, r.Task, 2, {"stream": ""}, "stream is not empty"),
    (examples.plan, r.Task, 2, {"environment_seed": 8}, "a group shares one environment seed"),
    (examples.plan, r.Task, 3, {"member": 0}, "group and member are unique"),
    (examples.plan, r.Retrieval, 1, {"similarity": 1.5}, "similarity is between"),
    (examples.plan, r.Retrieval, 1, {"score": float("nan")}, "every term of eq. 6 is finite"),
    (examples.plan, r.Retrieval, 1, {"entry_id": "e0"}, "episode_id and entry_id are unique"),
    (examples.plan, r.Retrieval, 3, {"episode_id": "elsewhere"}, "belongs to a planned episode"),
    (examples.plan, r.Retrieval, 0, {"episode_id": "r0001-room-g0000-m0003"}, "chosen for guided episodes only"),
    (examples.plan, r.RetrievalCount, 0, {"count": -1}, "count is at least 0"),
    (
        examples.collect,
        r.Episode,
        0,
        {"entry_ids": [], "content_digests": [], "experiences": []},
        "guided means that an experience was shown",
    ),
    (examples.collect, r.Episode, 3, {"guided": True}, "guided means that an experience was shown"),
    (examples.collect, r.Episode, 0, {"experiences": []}, "every experience has its version and its text"),
    (
        examples.collect,
        r.Episode,
        0,
        {"entry_ids": ["e0"] * 2, "content_digests": [examples.SHA] * 2, "experiences": ["a", "b"]},
        "is shown once",
    ),
    (examples.collect, r.Episode, 1, {"reward": float("nan")}, "the reward is finite"),
    (examples.collect, r.Episode, 1, {"stop_reason": "success"}, "success is the stop reason"),
    (examples.collect, r.Episode, 1, {"stop_reason": "error"}, "an error has a reason code"),
    (examples.collect, r.Episode, 1, {"last_observation": None}, "what the last action did is known"),
    (examples.collect, r.Episode, 1, {"turns": 3}, "as many turns"),
    (examples.collect, r.Episode, 1, {"generation_ids": ["g9"]}, "every sequence of an episode has its token record"),
    (examples.collect, r.Episode, 1, {"generation_ids": []}, "an episode has a sequence, and names each once"),
    (examples.collect, r.Episode, 1, {"generation_ids": ["g1", "g1"]}, "an episode has a sequence, and names each"),
    (examples.collect, r.Episode, 1, {"generation_ids": ["g1", "g0"]}, "is a sequence of one episode"),
    (examples.judged, r.Verdict, 1, {"scores": [1.0]}, "ok means that every episode has a score"),
    (examples.judged, r.Verdict, 0, {"scores": [1.0] * 4}, "ok means that every episode has a score"),
    (examples.judged, r.Verdict, 1, {"scores": [1.0, 0.0, 1.5, 0.0]}, "a score is between 0 and 1"),
    (examples.judged, r.Verdict, 1, {"scores": [1.0, 0.0, 0.5, 0.0]}, "has its score as a part of its reward"),
    (examples.judged, r.Verdict, 1, {"mode": "absolute"}, "an absolute verdict is about one episode"),
    (examples.judged, r.Verdict, 1, {"reason_code": "unsure"}, "reason_code"),
    (
        examples.judged,
        r.Verdict,
        0,
        {"episode_ids": ["elsewhere"], "mode": "absolute"},
        "a verdict is about episodes of its stage",
    ),
    (examples.collect, r.Turn, 3, {"generation_id": "g2"}, "a turn is in a sequence of its episode"),
    (examples.collect, r.Turn, 3, {"turn": 5}, "numbered without a gap"),
    (examples.collect, r.Turn, 3, {"first_token": 3}, "spans of a sequence do not overlap"),
    (examples.collect, r.Turn, 3, {"last_token": 7}, "the trained tokens of a sequence are those of its turns"),
    (
        examples.collect,
        r.Generation,
        2,
        {"loss_mask": [0, 1, 1, 0, 0, 0, 1, 1], "logprobs": [0, -1, -1, 0, 0, 0, -1, -1]},
        "the trained tokens of a sequence are those of its turns",
    ),
    (examples.collect, r.Turn, 3, {"action": None}, "a valid turn has an action"),
    (examples.collect, r.Generation, 2, {"logprobs": [0.0] * 7}, "have one length"),
    (examples.collect, r.Generation, 2, {"loss_mask": [0, 0, 1, 2, 0, 0, 1, 1]}, "loss_mask holds 0 and 1 only"),
    (examples.collect, r.Generation, 2, {"logprobs": [0, 0, 0.5, -1, 0, 0, -1, -1]}, "are not positive"),
    (examples.collect, r.Generation, 2, {"logprobs": [0, -1, -1, -1, 0, 0, -1, -1]}, "0 where the mask is 0"),
    (examples.collect, r.Generation, 2, {"logprobs": [0, 0, float("-inf"), -1, 0, 0, -1, -1]}, "are finite"),
    (examples.collect, r.Generation, 2, {"weights_digest": "abc"}, "weights_digest is a SHA-256"),
    (examples.asking, r.Question, 0, {"answer": None}, "ok means that there is an answer"),
    (examples.asking, r.Question, 0, {"reason_code": "bored"}, "reason_code is one of"),
    (examples.asking, r.Question, 0, {"answer": "down!"}, "a question is a turn that asked"),
    (examples.asking, r.Question, 0, {"turn": 1}, "a question is a turn that asked"),
    (examples.asking, r.Question, 0, {"entry_id": None}, "an answer comes from an entry"),
    (examples.asking, r.Question, 0, {"similarity": None}, "an entry comes with its version and similarity"),
    (examples.asking, r.Question, 0, {"question_id": "q-0"}, "the id names the episode"),
    (examples.asking, r.Question, 0, {"generation_id": "g0"}, "an answer has its token record"),
    (examples.asking, r.Question, 1, {"reason_code": "uses_spent"}, "only guided episodes are answered"),
    (examples.asking, r.Generation, 4, {"generation_id": "a9"}, "the token record of an answer belongs to a question"),
    (examples.asking, r.Generation, 4, {"role": ""}, "role is not empty"),
    (examples.asking, r.Turn, 3, {"action": "<ask>"}, "a turn that asked has its question"),
    (examples.asking, r.RawReward, 0, {"raw_reward": float("inf")}, "the reward is finite"),
    (examples.asking, r.RawReward, 0, {"family": "lake"}, "a raw reward is that of an episode of the family"),
    (examples.asking, r.RawReward, 1, {"episode_id": "nobody"}, "a raw reward is that of an episode of the family"),
    (
        examples.asking,
        r.Episode,
        3,
        {"reward": 1.0, "error": "environment_X", "stop_reason": "error", "last_observation": None},
        "an episode that broke is worth nothing by any convention",
    ),
    (examples.asking, r.StrippedContext, 0, {"loss_mask": [0, 1]}, "token_ids and loss_mask have one length"),
    (examples.asking, r.StrippedContext, 0, {"loss_mask": [0, 2, 0]}, "loss_mask holds 0 and 1 only"),
    (examples.asking, r.StrippedContext, 0, {"loss_mask": [1, 1, 1]}, "those of the turns that asked nothing"),
    (examples.asking, r.StrippedContext, 0, {"removed_tokens": 4}, "are the whole record"),
    (examples.asking, r.StrippedContext, 0, {"generation_id": "g1"}, "belongs to a sequence of a guided episode"),
    (
        examples.asking,
        r.StrippedContext,
        0,
        {"episode_id": "r0001-room-g0000-m0002"},
        "belongs to a sequence of a guided episode",
    ),
    (examples.asking, r.StrippedContext, 0, {"episode_id": "r0001-room-g0000-m0002"}, "has its stripped context"),
    (examples.distill, r.Distillation, 0, {"verdict": "malformed"}, "malformed has a reason code"),
    (examples.distill, r.Distillation, 1, {"operations": 2}, "malformed output asks for nothing"),
    (examples.distill, r.Distillation, 1, {"generation_id": "x0"}, "generation_id is unique"),
    (examples.distill, r.Distillation, 0, {"turns": None}, "how many turns there were and were shown"),
    (examples.distill, r.Distillation, 0, {"turns_shown": 3}, "how many turns there were and were shown"),
    (examples.distill, r.Distillation, 0, {"turns_shown": None}, "how many turns there were and were shown"),
    (
        examples.distill,
        r.Distillation,
        0,
        {"kind": "merge", "episode_id": None, "source_entry_ids": ["e0"]},
        "a merge has none",
    ),
    (examples.distill, r.Operation, 0, {"distillation_id": "d1", "operation_id": "d1-o0"}, "not malformed"),
    (examples.distill, r.Operation, 0, {"text": " "}, "add, update and merge have a text"),
    (examples.distill, r.Operation, 0, {"embedder_cut": None}, "known whether the embedder reads all of it"),
    (examples.distill, r.Resemblance, 0, {"other_digest": examples.SHA}, "a text does not repeat itself"),
    (examples.distill, r.Resemblance, 0, {"similarity": -0.1}, "similarity is between"),
    (examples.distill, r.Resemblance, 0, {"content_digest": "1" * 64}, "is the text of an operation"),
    (examples.distill, r.Generation, 1, {"generation_id": "x7"}, "is accounted for"),
    (examples.initialize, r.ImportedEntry, 0, {"source_round": 4}, "the id names where it comes from"),
    (examples.initialize, r.ImportedEntry, 0, {"uses": 2}, "what was used has an outcome"),
    (examples.initialize, r.ImportedEntry, 0, {"story": "{"}, "its story is JSON"),
    (examples.approve, r.Approval, 0, {"decision": "maybe"}, "decision is one of approved, partly, rejected"),
    (examples.approve, r.Approval, 0, {"decision": "approved"}, "approved rejects nothing"),
    (examples.approve, r.Approval, 0, {"operations": 1}, "approved rejects nothing"),
    (examples.approve, r.Approval, 0, {"rejected_operations": ["a", "a"]}, "a rejected operation is named once"),
    (examples.approve, r.Approval, 0, {"person": " "}, "a person is named"),
    (examples.consolidate, r.BankEntry, 0, {"episode_ids": []}, "an entry derives from some episode"),
    (examples.consolidate, r.BankChange, 0, {"content_digest": "0" * 64}, "has the event of its change"),
    (examples.consolidate, r.BankChange, 1, {"entry_id": "e9"}, "entry_id"),
    (examples.consolidate, r.BankChange, 1, {"removed": False}, "what was evicted or dropped is not in the bank"),
    (examples.consolidate, r.BankSnapshot, 0, {"base_round": 2}, "round is at least base_round"),
    (examples.consolidate, r.BankSnapshot, 0, {"changes_since_base": 3}, "after a base nothing has changed yet"),
    (examples.consolidate, r.BankEvent, 1, {"entry_id": "e9"}, "what was evicted or dropped is not in the bank"),
    (examples.consolidate, r.BankEvent, 1, {"entry_id": "e8"}, "an entry that was evicted or dropped is removed"),
    (examples.consolidate, r.BankSnapshot, 0, {"removed": 2}, "the summary of a bank counts the changes"),
    (examples.consolidate, r.BankSnapshot, 0, {"changed": 0}, "the summary of a bank counts the changes"),
    (examples.consolidate, r.BankEvent, 1, {"reason": None}, "a rejection or eviction has a reason"),
    (examples.consolidate, r.BankEvent, 0, {"repeats": "e8"}, "only a rejected duplicate repeats an entry"),
    (examples.consolidate, r.BankText, 0, {"text": "other"}, "the digest is that of the text"),
    (examples.credit, r.Credit, 0, {"outcome": 0.5}, "an outcome is +1 or -1"),
    (examples.credit, r.Credit, 0, {"guided_minus_free": 0.5}, "the difference is outcome minus free mean"),
    (examples.credit, r.EntryScore, 0, {"mean_outcome": -1.5}, "mean_outcome is between -1 and 1"),
    (examples.credit, r.BufferItem, 0, {"score_sum": 6.5}, "the sum of rewards is at most three per use"),
    (examples.credit, r.BufferItem, 0, {"status": "waiting"}, "was selected from the buffer"),
    (examples.credit, r.BufferItem, 0, {"repeats": ["x1"]}, "has its entry and its output"),
    (examples.credit, r.BufferItem, 0, {"repeats": ["x", "x"], "repeated_entries": ["e", "e"]}, "is named once"),
    (examples.credit, r.Sample, 1, {"generation_id": "x5"}, "what is selected from the buffer is trained on"),
    (examples.credit, r.Sample, 0, {"weight": float("inf")}, "reward, advantage and weight are finite"),
    (examples.credit, r.Sample, 0, {"loss_mask": [0, 0], "logprobs": [0.0, 0.0]}, "has a trained token"),
    (examples.trial, r.Trial, 1, {"admitted": True}, "ok means that the text may enter"),
    (examples.trial, r.Trial, 0, {"difference": 0.5}, "the difference is that of the shares won"),
    (examples.trial, r.Trial, 0, {"wins_with": 1, "difference": 0.5}, "the result of its text"),
    (examples.trial, r.Trial, 2, {"tried_round": 2, "pairs": 1}, "tried in this round or an earlier one"),
    (examples.trial, r.Trial, 2, {"difference": 0.0}, "what has no pair is not believed"),
    (
        examples.trial,
        r.Trial,
        1,
        {"admitted": True, "reason_code": "ok", "wins_without": 1, "difference": -0.5},
        "the result of its text",
    ),
    (examples.trial, r.TrialResult, 0, {"wins_with": 1}, "what its matched pairs say"),
    (examples.trial, r.TrialResult, 1, {"pairs": 1}, "what its matched pairs say"),
    (
        examples.trial,
        r.TrialResult,
        1,
        {"content_digest": examples.SHA},
        "an experience that was played has its result",
    ),
    (examples.plan, r.Suppression, 0, {"entry_id": "e1"}, "a suppressed text is not retrieved"),
    (examples.reward, r.TextEffect, 1, {"suppressed": True}, "what is suppressed or withdrawn was used"),
    (examples.plan, r.Retrieval, 4, {"episode_id": "r0001-room-g0000-m0001", "rank": 9}, "for free episodes only"),
    (examples.asking, r.TeacherContext, 0, {"generation_id": "g1"}, "belongs to a sequence of a free episode"),
    (examples.asking, r.TeacherContext, 0, {"content_digests": []}, "every entry has its version"),
    (examples.teach, r.TeacherLogprobs, 0, {"teacher_logprobs": [0.5, -0.5]}, "finite and not positive"),
    (examples.teach, r.TeacherLogprobs, 1, {"teacher_logprobs": [-0.5]}, "none where there is a reason"),
    (examples.teach, r.TeacherLogprobs, 0, {"top_ids": [[1, 2]]}, "likeliest ids are those of every token"),
    (examples.behavior, r.BehaviorLogprobs, 0, {"logprobs": [0.0, 0.5]}, "finite and not positive"),
    (examples.behavior, r.BehaviorLogprobs, 0, {"logprobs": []}, "a token record has tokens"),
    (examples.credit, r.Sample, 2, {"teacher_logprobs": []}, "of every trained token of reverse_kl"),
    (examples.credit, r.Sample, 2, {"top_ids": []}, "likeliest ids are those of every trained token"),
    (examples.reward, r.CandidateUtility, 0, {"utility": 1.5}, "utility"),
    (examples.critique, r.Critique, 1, {"score": 1.0}, "s_c is 1, 0.5 or 0 by the verdict"),
    (examples.critique, r.Critique, 3, {"score": 0.0}, "none where malformed"),
    (examples.critique, r.Critique, 3, {"reason_code": "ok"}, "malformed has a reason code other than ok"),
    (examples.critique, r.Critique, 2, {"text": "go east"}, "what is not rejected has a text"),
    (examples.critique, r.Critique, 0, {"generation_id": "c9"}, "a verdict has its token record"),
    (examples.critique, r.Generation, 0, {"generation_id": "c9"}, "belongs to a critique"),
    (examples.critique, r.Generation, 0, {"kind": "episode"}, "a verdict has its token record"),
    (examples.critique, r.Generation, 0, {"kind": ""}, "kind is not empty"),
    (examples.critique, r.SuccessRate, 0, {"successes": 9}, "episodes is at least successes"),
    (examples.reward, r.UseReward, 0, {"reward": 2.0}, "a reward by guided minus free is that of the credit"),
    (examples.reward, r.UseReward, 1, {"reward": 0.3}, "the reward is s_c + r (eq. 8)"),
    (examples.reward, r.UseReward, 1, {"usefulness": None}, "usefulness is there where it is the basis"),
    (examples.reward, r.UseReward, 1, {"outcome": 1.0}, "a use with an outcome is credited with it"),
    (examples.reward, r.UseReward, 1, {"critic_score": 0.7, "reward": 0.9}, "s_c is 1, 0.5 or 0"),
    (examples.reward, r.UseReward, 2, {"critic_score": None}, "what was rejected has its score"),
    (examples.reward, r.UseReward, 1, {"episode_id": "r0001-room-g0000-m0003"}, "every credited use has its reward"),
    (examples.reward, r.EntryUsefulness, 0, {"usefulness": -1.5}, "usefulness is between -1 and 1"),
    (examples.update, r.Weights, 0, {"checkpoint": None}, "updated weights have a checkpoint"),
    (examples.update, r.Metric, 0, {"value": float("nan")}, "a metric is finite"),
    (examples.evaluate, r.Evaluation, 1, {"guided": True, "entry_ids": ["e9"]}, "without the bank nothing is guided"),
    (examples.evaluate, r.Evaluation, 2, {"guided": True, "entry_ids": ["e9"]}, "without the bank nothing is guided"),
    (examples.evaluate, r.Evaluation, 1, {"reward": float("inf")}, "the reward is finite"),
    (examples.evaluate, r.Evaluation, 2, {"condition": "other"}, "condition is one of with_bank, without_bank, random"),
    (examples.evaluate, r.Evaluation, 2, {"tokens_read": 4}, "but for the random policy's"),
    (examples.evaluate, r.Evaluation, 1, {"tokens_sampled": 1}, "a turn has sampled tokens"),
    (examples.collect, r.Episode, 1, {"tokens_sampled": 1}, "tokens_sampled is at least turns"),
    (examples.collect, r.Episode, 1, {"tokens_read": 5}, "read and wrote the tokens of its sequences"),
    (examples.evaluate, r.Evaluation, 1, {"actions": ["east"]}, "every turn has an action"),
]


@pytest.mark.parametrize(
    ("stage", "row_type", "index", "changes", "rule"),
    sampled(BREACHES, 8),
    ids=[f"{b[1].table}-{b[4][:40]}" for b in BREACHES],
)
def test_a_breach_names_table_rule_and_row(
    stage: Any, row_type: type[Row], index: int, changes: dict[str, Any], rule: str
) -> None:
    rows = _changed(stage(), row_type, index, **changes)
    with pytest.raises(DataCheckFailed) as raised:
        check_tables(_tables(rows), where="round 1, stage x")
    lines = [line for line in raised.value.found.splitlines() if rule in line]
    assert lines, raised.value.found
    assert raised.value.where == "round 1, stage x"
    assert "row " in lines[0]


def test_what_came_and_went_in_one_round_left_no_change() -> None:
    rows = examples.consolidate()
    came, went = rows[r.BankEvent]
    rows[r.BankEvent] = [
        came,
        went,
        dataclasses.replace(came, event_id="r0001-e0002", entry_id="e5", operation_id="d0-o1"),  # type: ignore[type-var]
        dataclasses.replace(went, event_id="r0001-e0003", entry_id="e5"),  # type: ignore[type-var]
    ]
    check_tables(_tables(rows), where="round 1, stage x")


def test_the_row_and_id_of_an_offender_are_its_own() -> None:
    rows = _changed(examples.collect(), r.Episode, 3, stop_reason="bored")
    with pytest.raises(
        DataCheckFailed, match=r"table episodes: 'stop_reason is one of .*row 3 \(r0001-room-g0000-m0003\)"
    ):
        check_tables(_tables(rows), where="here")


def test_many_offenders_are_counted_and_the_first_shown() -> None:
    metrics = [r.Metric(round=1, stage="s", name=f"m{i}", value=float("inf"), alarm=None) for i in range(40)]
    with pytest.raises(DataCheckFailed, match=r"broken in 40 rows: row 0 \(s, m0\); .*; …"):
        check_tables({r.Metric: table_of(r.Metric, metrics)}, where="here")


def test_an_expectation_that_raises_is_a_failure() -> None:
    query = {"type": SQL, "kwargs": {"unexpected_rows_query": "SELECT error('no ' || name) FROM {batch}"}}
    with pytest.raises(DataCheckFailed, match=r"table metrics: '.* could not be checked: .*no "):
        check_tables(
            _tables({r.Metric: examples.update()[r.Metric]}), where="here", own={"metrics": {"expectations": [query]}}
        )


def test_rules_that_cannot_be_evaluated_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "nowhere"}}
    suite = {**suite_of("metrics"), "expectations": [nowhere]}
    monkeypatch.setattr("crl.checks.stage.suite_of", lambda table: suite)
    with pytest.raises(DataCheckFailed, match=r"metrics: the rules could not be checked: .*nowhere"):
        check_tables(_tables({r.Metric: examples.update()[r.Metric]}), where="here")


def test_every_offender_of_a_key_and_of_a_range_is_named() -> None:
    metrics = [r.Metric(round=1, stage="s", name=name, value=1.0, alarm=None) for name in ("a", "b", "a")]
    with pytest.raises(DataCheckFailed, match=r"are unique' is broken in 2 rows: row 0 \(s, a\); row 2 \(s, a\)\n"):
        check_tables({r.Metric: table_of(r.Metric, metrics)}, where="here")
    scores = [
        r.EntryScore(entry_id=f"e{index}", content_digest=examples.SHA, uses=uses, mean_outcome=mean, last_used_round=1)
        for index, (uses, mean) in enumerate([(1, 1.0), (0, 0.0), (1, -1.0), (2, 1.01), (2, -1.01)])
    ]
    with pytest.raises(DataCheckFailed) as raised:
        check_tables({r.EntryScore: table_of(r.EntryScore, scores)}, where="here")
    assert raised.value.found.splitlines() == [
        "table entry_scores: 'uses is at least 1' is broken in 1 row: row 1 (e1)",
        "table entry_scores: 'mean_outcome is between -1 and 1' is broken in 2 rows: row 3 (e3); row 4 (e4)",
    ]


def test_importing_the_checks_stays_light() -> None:
    code = (
        "import sys, crl.checks, crl.audit.verify, crl.run.lease\n"
        "heavy = {'great_expectations', 'pandas', 'duckdb', 'torch', 'prefect', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_runs_of_trained_tokens_are_those_of_the_mask() -> None:
    rng = np.random.default_rng(0)
    [made, *_] = [row for row in examples.collect()[r.Generation] if isinstance(row, r.Generation)]
    masks = [[int(value) for value in rng.integers(0, 2, int(rng.integers(0, 9)))] for _ in range(300)]
    rows = [
        dataclasses.replace(made, token_ids=[1] * len(mask), loss_mask=mask, logprobs=[0.0] * len(mask))
        for mask in masks
    ]
    found = summarize(table_of(r.Generation, rows))
    pairs = zip(found["trained_since"].to_pylist(), found["trained_until"].to_pylist(), strict=True)
    for mask, (since, until) in zip(masks, pairs, strict=True):
        spans = list(zip(since, until, strict=True))
        assert spans == [run.span() for run in re.finditer("1+", "".join(map(str, mask)))]
