"""Judges behind a real endpoint that are biased, out of range, silent or at odds with themselves: `crl status` names
them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crl.cli import main
from crl.config.engines import ServerConfig
from crl.errors import StageFailed
from crl.policies.endpoint import EndpointPolicy
from crl.policies.serving import Client
from crl.records import Episode, Evaluation, Verdict
from tests.fake_vllm import FakeVllm, serving
from tests.unit.recipes.played import Played
from tests.unit.rounds.judging import WON, JudgedServices, answers_in, judged_experiment, says, truth

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
Said = Callable[[str, np.random.Generator], str | None]
"""What a judge answers to what it reads; None: nothing, ever."""


@pytest.fixture
def fake() -> Iterator[FakeVllm]:
    with serving() as found:
        yield found


def judged_by(root: Path, fake: FakeVllm, said: Said, seconds: float = 60, **changes: Any) -> Played:
    """A round whose groups a judge reads over HTTP, all of them twice."""
    ended = threading.Event()

    def answer(body: Any) -> tuple[int, Any]:
        text = said(body["messages"][-1]["content"], np.random.default_rng(body["seed"]))
        if text is None:
            ended.wait(600)
        return 200, {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}

    fake.faults[CHAT] = answer
    endpoint = {"model": "endpoint:some/judge", "engine": "openai"}
    changes = {"method__evaluation__every": 0, "reward": {"twice": 1.0}, **changes}
    made = judged_experiment("group", judge=endpoint, **changes)
    services = JudgedServices(made, said)
    server = ServerConfig(address=f"{fake.address}/v1", answer_seconds=seconds)
    judge = EndpointPolicy(made.method.role("judge"), server, "max_tokens")
    judge.client.close()
    judge.client = Client("the endpoint of some/judge", server, f"{fake.address}/v1")  # tried once
    services._policies["judge"] = judge
    try:
        return Played(root, made, 1, services)
    finally:
        ended.set()
        judge.close()


def status(run: Played, capsys: pytest.CaptureFixture[str]) -> str:
    """What a person reads, in one line."""
    with pytest.raises(SystemExit) as ended:
        main(["status", str(run.run.path)])
    shown = capsys.readouterr()
    assert ended.value.code == 0, shown.err
    return " ".join(shown.out.split())


def scores(values: Callable[[list[str], np.random.Generator], list[float]]) -> Said:
    return says(lambda answers, random: values(list(answers), random), at_once=True)


def test_one_that_tells_the_truth_raises_no_alarm(
    tmp_path: Path, fake: FakeVllm, capsys: pytest.CaptureFixture[str]
) -> None:
    run = judged_by(tmp_path, fake, says(truth, at_once=True))
    assert "judge" not in status(run, capsys)
    assert not any("Advice" in str(body) for body in fake.asked(CHAT))


def test_one_that_prefers_the_first_is_named(
    tmp_path: Path, fake: FakeVllm, capsys: pytest.CaptureFixture[str]
) -> None:
    run = judged_by(tmp_path, fake, scores(lambda answers, random: [10.0, *[6.0] * (len(answers) - 1)]))
    told = status(run, capsys)
    assert (
        "alarm in round 1: " in told
        and "(health: judge_first" in told
        and "the judge prefers what it reads first" in told
    )


def test_one_that_contradicts_itself_is_named(
    tmp_path: Path, fake: FakeVllm, capsys: pytest.CaptureFixture[str]
) -> None:
    run = judged_by(tmp_path, fake, scores(lambda answers, random: [*random.choice([0.0, 10.0], len(answers))]))
    told = status(run, capsys)
    assert (
        "alarm in round 1: " in told and "(health: judge_agreement" in told and "the judge contradicts itself" in told
    )


def test_one_that_is_out_of_range_is_named(tmp_path: Path, fake: FakeVllm, capsys: pytest.CaptureFixture[str]) -> None:
    run = judged_by(
        tmp_path, fake,
        scores(lambda answers, random: [11.0 if WON in answers[0] else 0.0] + [0.0] * (len(answers) - 1)),
    )  # fmt: skip
    told = status(run, capsys)
    assert (
        "alarm in round 1: " in told
        and "(health: judge_out_of_range" in told
        and "scores out of range (0 to 10)" in told
    )
    lost = [row for row in run.rows(Episode, "collect", 1) if row.error == "judge_out_of_range"]
    assert lost and f"{len(lost)} of 16 games of lake: judge_out_of_range" in told, told


def test_one_that_hangs_costs_the_groups_that_wait_for_it_and_is_named(
    tmp_path: Path, fake: FakeVllm, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(read: str, random: np.random.Generator) -> str | None:
        return None if WON not in answers_in(read)[0] else says(truth, at_once=True)(read, random)

    run = judged_by(tmp_path, fake, said, seconds=5, reward={"twice": 0.0}, method__evaluation__every=1)
    told = status(run, capsys)
    assert "alarm in round 1: " in told and "(health: judge_no_answer" in told and "the judge hangs or is gone" in told
    verdicts = run.rows(Verdict, "collect", 1)
    silent = [row for row in verdicts if row.reason_code == "no_answer"]
    assert silent and all("did not answer /chat/completions in time" in row.output for row in silent)
    without = {name for row in silent for name in row.episode_ids}
    assert {row.episode_id for row in run.rows(Episode, "collect", 1) if row.error is not None} == without
    assert f"{len(without)} of 16 games of lake: judge_no_answer" in told, told
    answered = [row for row in run.rows(Verdict, "evaluate", 1) if row.reason_code == "ok"]
    evaluated = {row.evaluation_id for row in run.rows(Evaluation, "evaluate", 1)}
    assert evaluated == {row.episode_ids[0] for row in answered}, "neither won nor lost"


def test_one_that_answers_nobody_stops_the_stage_and_is_asked_again(tmp_path: Path, fake: FakeVllm) -> None:
    with pytest.raises(StageFailed, match=r"the judge gave no score, 8 times: no_answer \d+; at last: .*in time"):
        judged_by(tmp_path, fake, lambda read, random: None, seconds=1, method__evaluation__every=1)
    run = judged_by(tmp_path, fake, says(truth, at_once=True), method__evaluation__every=1)
    assert {row.reason_code for row in run.rows(Verdict, "evaluate", 0)} == {"ok"}
