"""Which games a page replays, what of them it embeds, and that no text leaves the script element it lies in."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from crl.cli.sql import report
from crl.records import Question, Turn
from crl.report import episodes as module
from crl.report.episodes import EARLIER_ROUNDS, EPISODES, Replays, as_json, choose, replays
from crl.report.page import render
from crl.report.views import query
from crl.text.unicode import escaped
from tests.unit.report.builder import credit, episode, retrieval, write_stage
from tests.unit.report.test_page import OWN_SCRIPTS, Page

HOSTILE = [
    "<script>alert(1)</script>", "</script><script>alert(1)</script>", "<!--", "<!-- <script>", "]]>",
    "&lt;/script&gt;", '"><img src=x onerror=alert(1)>', "a\u2028b\u2029c\u202ed\x00e\x1b[31m\r\n\t\\",
    "{{ 1 }}", "𝕏 é", "'",
]  # fmt: skip


def told(found: Replays) -> list[dict[str, Any]]:
    """The embedded episodes with their texts in place."""
    data = json.loads(found.json())

    def text(place: int | None) -> str | None:
        return None if place is None else data["texts"][place]

    for each in data["episodes"]:
        each["goal"], each["last"] = text(each["goal"]), text(each["last"])
        each["turns"] = [[text(a), text(b), text(c), valid, text(e)] for a, b, c, valid, e in each["turns"]]
        for question in each["questions"]:
            question["question"] = text(question["question"])
        if each["guide"]:
            each["guide"]["text"] = text(each["guide"]["text"])
        for output in each["outputs"]:
            output["text"] = text(output["text"])
            for operation in output["operations"]:
                operation["text"] = text(operation["text"])
    return list(data["episodes"])


def one_round(path: Path, *, groups: int, members: int, turns: int = 1, text: str = "@") -> Path:
    """A round of guided and free episodes of two families."""
    played, taken = [], []
    for group in range(groups):
        for member in range(members):
            made = dataclasses.replace(
                episode(1, member, guided=member < members // 2, success=False),
                episode_id=f"r0001-room-g{group:04d}-m{member:03d}", group=group, family=f"family{2 * group // groups}",
            )  # fmt: skip
            played.append(made)
            taken += [
                Turn(
                    episode_id=made.episode_id, turn=turn, observation=f"{text} {group} {member} {turn}", output="go",
                    action="go", valid=True, feedback=None, generation_id="g", first_token=0, last_token=1,
                    stop_reason="end_of_turn",
                )
                for turn in range(turns)
            ]  # fmt: skip
    write_stage(path, 1, "collect", [played, taken])
    return path


def test_few_episodes_are_all_there() -> None:
    assert choose({1: 16, 2: 16, 3: 0}, 200) == {1: 16, 2: 16}
    assert choose({}, 200) == {} and choose({1: 16}, 0) == {}


@pytest.mark.parametrize(("rounds", "a_round", "limit"), [(100, 16, 200), (1000, 4, 200), (3, 512, 200), (1, 512, 200),
                                                          (40, 16, 7), (40, 16, 1), (5, 16, 79)])  # fmt: skip
def test_the_newest_and_a_spread_over_the_rest(rounds: int, a_round: int, limit: int) -> None:
    quotas = choose(dict.fromkeys(range(1, rounds + 1), a_round), limit)
    assert 0 < sum(quotas.values()) <= limit and all(0 < quota <= a_round for quota in quotas.values())
    assert rounds in quotas and len(quotas) <= EARLIER_ROUNDS + math.ceil(limit / 2 / a_round)
    newest = sum(quota for number, quota in quotas.items() if number > rounds - math.ceil(limit / 2 / a_round))
    assert newest >= min(limit - limit // 2, a_round)
    if rounds >= 40 and limit >= 4:
        assert 1 in quotas, "the beginning is there too"
    if rounds == 100:
        assert sum(quotas.values()) == limit


def test_a_round_that_is_cut_keeps_every_family_and_twins(tmp_path: Path) -> None:
    run = one_round(tmp_path / "run", groups=8, members=4)
    found = replays(run, {1: 32}, 8)
    assert (len(found.episodes), found.played, found.left_out, found.too_large) == (8, 32, 24, 0)
    assert Counter(each["family"] for each in found.episodes) == {"family0": 4, "family1": 4}
    assert Counter(each["guided"] for each in found.episodes) == {True: 4, False: 4}


@pytest.mark.slow
def test_what_is_embedded_is_what_the_record_holds(finished: Path) -> None:
    played = dict(query(finished, "SELECT round, count(*) FROM episodes WHERE stage = 'collect' GROUP BY round")[1])
    found = told(replays(finished, played))
    assert [each["id"] for each in found] == [
        name for (name,) in query(finished, 'SELECT episode_id FROM episodes WHERE stage = \'collect\' '
                                            'ORDER BY round DESC, "group", member')[1]
    ]  # fmt: skip
    turns = query(
        finished,
        "SELECT episode_id, observation, output, action, valid, feedback FROM turns WHERE stage = 'collect' "
        "ORDER BY episode_id, turn",
    )[1]
    assert sorted([[each["id"], *turn] for each in found for turn in each["turns"]], key=lambda row: row[0]) == [
        list(row) for row in turns
    ]
    ended = dict(query(finished, "SELECT episode_id, last_observation FROM episodes WHERE stage = 'collect'")[1])
    assert {each["id"]: each["last"] for each in found} == ended and all(ended.values())
    guided = {each["id"]: each["guide"] for each in found if each["guide"]}
    columns = "episode_id, entry_id, similarity, score, count, rank, bank_round"
    for name, *terms in query(finished, f"SELECT {columns} FROM retrievals WHERE chosen AND stage = 'plan'")[1]:
        guide = guided.pop(name)
        assert [guide[key] for key in ("entry", "similarity", "score", "count", "rank", "bank_round")] == terms
        candidates = query(finished, f"SELECT count(*) FROM retrievals WHERE episode_id = '{name}'")[1][0][0]
        assert guide["candidates"] == candidates and guide["outcome"] in (-1.0, 1.0)
    assert guided == {}
    asked = query(finished, "SELECT count(*) FROM operations JOIN distillations USING (round, stage, distillation_id) "
                            "WHERE stage = 'distill' AND episode_id IS NOT NULL AND round > 0")[1][0][0]  # fmt: skip
    operations = [each for one in found for output in one["outputs"] for each in output["operations"]]
    assert len(operations) == asked and all(each["became"] for each in operations)


@pytest.mark.usefixtures("plain_charts")
def test_a_page_that_would_grow_too_large_is_cut_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = one_round(tmp_path / "run", groups=8, members=4, turns=10, text="x" * 1000)
    monkeypatch.setattr(module, "LARGEST", 100_000)
    found = replays(run, {1: 32}, 32)
    assert 90_000 < len(found.json()) <= 101_000 and 5 < len(found.episodes) < 10
    assert found.too_large == 32 - len(found.episodes)
    page = Page(render(run))
    assert f"Here are {len(found.episodes)} of 32 episodes" in page.text
    assert f"{found.too_large} more would have made the page too large" in page.text


def test_one_text_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST", 50)
    [first, *_] = told(replays(one_round(tmp_path / "run", groups=1, members=2, text="y" * 100), {1: 2}))
    assert first["turns"][0][0] == f"{'y' * 50} … (106 characters)"


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_leaves_its_script_element(text: str) -> None:
    embedded = as_json({"texts": [text]})
    assert json.loads(embedded) == {"texts": [text]}
    assert embedded.isascii() and not set(embedded) & set("<>&'") and "\n" not in embedded


def test_a_column_that_no_file_has_is_its_default(tmp_path: Path) -> None:
    """Nothing was left out in these turns: stages leave columns out that hold nothing but a default."""
    run = one_round(tmp_path / "run", groups=1, members=2)
    assert query(run, "SELECT DISTINCT dropped_turns, dropped_tokens, turn_reward FROM turns")[1] == [(0, 0, None)]


@pytest.mark.slow
def test_hostile_episodes_are_data(tmp_path: Path) -> None:
    run = tmp_path / "run"
    played = [
        dataclasses.replace(
            episode(1, number, guided=True, success=False), goal=text, experiences=[text], entry_ids=[text],
            family=text, stop_reason=text, last_observation=text,
        )
        for number, text in enumerate(HOSTILE)
    ]  # fmt: skip
    turns = [
        Turn(episode_id=each.episode_id, turn=0, observation=each.goal, output=each.goal, action=each.goal, valid=True,
             feedback=each.goal, generation_id="g", first_token=0, last_token=1, stop_reason="length")
        for each in played
    ]  # fmt: skip
    write_stage(run, 1, "collect", [played, turns])
    text = render(run)
    page = Page(text)
    assert page.tags.count("script") == OWN_SCRIPTS == text.count("</script") and "img" not in page.tags
    assert "<!--" not in text
    data = json.loads(page.data)
    shown = [escaped(each) for each in HOSTILE]
    assert [data["texts"][each["turns"][0][0]] for each in data["episodes"]] == shown
    assert [each["guide"]["entry"] for each in data["episodes"]] == shown


def test_numbers_that_json_does_not_know_are_none(tmp_path: Path) -> None:
    run = one_round(tmp_path / "run", groups=1, members=2)
    name = "r0001-room-g0000-m000"
    found = dataclasses.replace(retrieval(0), episode_id=name, round=1, similarity=math.nan, score=math.inf)
    write_stage(run, 1, "plan", [[found]])
    write_stage(run, 1, "credit", [[dataclasses.replace(credit(0, 1.0), round=1, episode_id=name, free_mean=None)]])
    guide = told(replays(run, {1: 2}))[0]["guide"]
    assert guide["similarity"] is None and guide["score"] is None and guide["free_mean"] is None
    assert guide["outcome"] == 1.0


@pytest.mark.usefixtures("plain_charts")
def test_a_page_without_episodes_says_so(tmp_path: Path) -> None:
    run = one_round(tmp_path / "run", groups=1, members=2)
    text = render(run, episodes=0)
    assert "None is embedded." in Page(text).text and 'id="replays"' not in text


def test_the_command_embeds_as_many_as_the_page() -> None:
    assert inspect.signature(report).parameters["episodes"].default == EPISODES


def test_a_question_is_shown_with_its_answer_and_where_that_came_from(tmp_path: Path) -> None:
    asked, played = episode(1, 0, guided=True, success=False), []
    asked = dataclasses.replace(asked, episode_id="r0001-room-g0000-m000")
    for turn, (action, valid, feedback) in enumerate(
        [("<ask>", True, "Down."), ("<ask>", False, "Enough."), ("go", True, None)]
    ):
        played.append(
            Turn(
                episode_id=asked.episode_id, turn=turn, observation="@", output=f"said {turn}", action=action,
                valid=valid, feedback=feedback, generation_id="g", first_token=0, last_token=1,
                stop_reason="end_of_turn",
            )
        )  # fmt: skip
    answered = Question(
        question_id="q-0", round=1, family="room", episode_id=asked.episode_id, turn=0, question="where?",
        reason_code="ok", entry_id="e7", content_digest="d", similarity=0.25, generation_id="g", answer="Down.",
    )  # fmt: skip
    refused = dataclasses.replace(
        answered, question_id="q-1", turn=1, question="and now?", reason_code="uses_spent", entry_id=None,
        content_digest=None, similarity=None, generation_id=None, answer=None,
    )  # fmt: skip
    write_stage(tmp_path, 1, "collect", [[asked], played, [answered, refused]])
    (shown,) = told(replays(tmp_path, {1: 1}))
    assert [turn[4] for turn in shown["turns"]] == ["Down.", "Enough.", None]
    assert shown["questions"] == [
        {"turn": 0, "question": "where?", "reason": "ok", "entry": "e7", "similarity": 0.25},
        {"turn": 1, "question": "and now?", "reason": "uses_spent", "entry": None, "similarity": None},
    ]
