"""HotpotQA as it is played: what is shown word for word, rewards, endings, feedback, determinism, both searches."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crl.envs import check_environment
from crl.errors import BadInput
from crl.protocols import FreeText, Instructive, Leveled, StopReason
from crl.worlds.hotpotqa import HotpotQAConfig
from crl.worlds.hotpotqa.environment import HotpotQAEnvironment, parse_action
from crl.worlds.hotpotqa.oracle import lesson_of
from crl.worlds.hotpotqa.questions import Paragraph
from crl.worlds.hotpotqa.search import MeaningSearch, WordSearch
from tests.worlds.hotpotqa.hotpotqa_files import record, write

MILL = "[1] Old Mill: The Old Mill stands in Farrow. It was built by Ada Quill."
QUILL = "Ada Quill: Ada Quill (1801–1870) was a builder. She kept a tame jackdaw."
OF_TWO = "Of the 2 paragraphs that it follows from"


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    """An environment over one question, reset."""
    write(tmp_path / "a", [record(0)])

    def make(**settings: Any) -> HotpotQAEnvironment:
        given = {"questions": "files", "directory": str(tmp_path), "train_file": "a", "held_out_from": None, **settings}
        config = HotpotQAConfig.model_validate(given)
        environment = config.make()
        environment.reset_many([0])
        return environment

    return make


def test_an_episode_word_for_word(opened: Any) -> None:
    environment = opened(results=2)
    assert isinstance(environment, Leveled) and isinstance(environment, Instructive)
    (start,) = environment.reset_many([0])
    assert start.goal == "Which bird did the builder of the Old Mill keep (0)?"
    assert start.observation == "3 paragraphs can be searched.\nTurns left: 5."
    assert start.actions == FreeText("search[query] or answer[text]")
    step = environment.step_many({0: "search[Old Mill]"})[0]
    assert step.observation == f"Found for Old Mill:\n{MILL}\nTurns left: 4."
    assert (step.legal, step.feedback, step.done, step.reward) == (True, "", False, 0.0)
    step = environment.step_many({0: "search[zebra]"})[0]
    assert step.legal and step.observation == "Nothing is found for zebra.\nTurns left: 3."
    step = environment.step_many({0: " SEARCH[who  built, Ada]"})[0]
    assert step.observation == f"Found for who built, Ada:\n{MILL}\n[2] {QUILL}\nTurns left: 2."
    step = environment.step_many({0: "answer[The jackdaw!]"})[0]
    assert step.observation == "Answered: The jackdaw!" and step.actions == FreeText("")
    assert (step.done, step.success, step.reward, step.stop_reason) == (True, True, 1.0, StopReason.success)
    assert step.feedback == f"The answer is right. {OF_TWO}, 2 were found: Old Mill, Ada Quill."
    with pytest.raises(RuntimeError, match="slot 0 is done"):
        environment.step_many({0: "search[x]"})


@pytest.mark.parametrize(
    ("answer", "reward", "said"),
    [
        # 1 of 2 words, of 1 that is right: 2 · 1/2 · 1 / (3/2)
        ("tame jackdaw", 2 / 3, f"The answer is not exact: its words match with F1 0.67. {OF_TWO}, 0 were found."),
        # 1 of 6: 2 · 1/6 / (7/6), below 0.3
        ("it was probably some sort jackdaw", 0.0, "The answer is not exact: its words match with F1 0.29."),
        ("an owl", 0.0, "The answer is wrong."),
    ],
)
def test_wrong_answers_end_the_episode(opened: Any, answer: str, reward: float, said: str) -> None:
    step = opened().step_many({0: f"answer[{answer}]"})[0]
    assert (step.done, step.success, step.stop_reason) == (True, False, StopReason.failure)
    assert step.reward == pytest.approx(reward) and step.legal
    assert step.feedback.startswith(said) and "a jackdaw" not in step.feedback, "the answer is never told"


def test_the_turn_limit_and_what_is_no_action(opened: Any) -> None:
    environment = opened(max_turns=2)
    step = environment.step_many({0: "I think it is a jackdaw"})[0]
    assert not step.legal and step.feedback.startswith("That is no action.") and not step.done
    assert step.observation == "3 paragraphs can be searched.\nTurns left: 1."
    step = environment.step_many({0: None})[0]
    assert (step.done, step.success, step.reward, step.stop_reason) == (True, False, 0.0, StopReason.turn_limit)
    assert step.feedback.endswith(f"No answer was given. {OF_TWO}, 0 were found.")
    assert step.observation == "3 paragraphs can be searched.\nNo turns are left."


def test_how_much_is_said(opened: Any) -> None:
    for feedback, said in (("outcome", "The answer is wrong."), ("none", "")):
        assert opened(feedback=feedback).step_many({0: "answer[an owl]"})[0].feedback == said
    shown = opened(paragraph_characters=20, results=1).step_many({0: "search[Farrow mill]"})[0].observation
    assert shown.splitlines()[1] == "[1] Old Mill: The Old Mill stands …"


@pytest.mark.parametrize(
    ("action", "parsed"),
    [
        ("search[a  b]", ("search", "a b")),
        ("answer[x [y] z]", ("answer", "x [y] z")),
        ("answer[x [y]", ("answer", "x [y")),
        ("answer[Paris] because [1] says so", ("answer", "Paris")),
        ("answer[yes]\nsearch[more]", ("answer", "yes")),
        ("answer[Lake: Nova Scotia\nMine: British Columbia]", ("answer", "Lake: Nova Scotia Mine: British Columbia")),
        ("\nsearch[old\n mill ]\n", ("search", "old mill")),
        ("Answer[ Paris ] because", ("answer", "Paris")),
        ("search[]", None),
        ("search[ ]", None),
        ("say search[x]", None),
        ("search x", None),
        ("", None),
        (None, None),
    ],
)
def test_actions(action: str | None, parsed: tuple[str, str] | None) -> None:
    assert parse_action(action) == parsed


def test_bm25_of_titles_and_texts_by_hand() -> None:
    """Three paragraphs of three, three and two terms; k1 0.9, b 0.4, inverse frequencies as in Lucene."""
    paragraphs = [Paragraph("Amber", "river bridge"), Paragraph("Basalt", "river river"), Paragraph("Cobalt", "bridge")]

    def score(count: int, length: int, found: int) -> float:
        idf = math.log(1 + (3 - found + 0.5) / (found + 0.5))
        return idf * count / (count + 0.9 * (1 - 0.4 + 0.4 * length / (8 / 3)))

    river = {"Amber": score(1, 3, 2), "Basalt": score(2, 3, 2)}
    bridge = {"Amber": score(1, 3, 2), "Cobalt": score(1, 2, 2)}
    search = WordSearch(paragraphs)
    for query, expected in [
        ("rivers", river),
        ("the bridge", bridge),
        ("river bridge", dict(Counter(river) + Counter(bridge))),
    ]:
        found = [each.title for each in search.find(query, 3)]
        assert found == sorted(expected, key=lambda title: -expected[title]), query
    assert search.find("granite", 3) == [] and len(search.find("river bridge", 1)) == 1


def test_embeddings_find_the_nearest_as_a_cosine_written_out_does() -> None:
    from crl.policies.embedders import load_embedder

    paragraphs = [Paragraph(f"Title {n}", f"word{n} word{n % 3} thing{n % 5}") for n in range(12)]
    embedder = load_embedder("lexical")
    search = MeaningSearch(paragraphs, "lexical")
    for query in ("word2", "thing3 word1", "nothing of it"):
        asked = embedder.embed_queries([query])[0].astype(float)
        cosines = [float(sum(embedder.embed([each.document])[0].astype(float) * asked)) for each in paragraphs]
        best = sorted(range(12), key=lambda n: (-cosines[n], n))[:4]
        assert search.find(query, 4) == [paragraphs[n] for n in best]


def test_an_embedder_that_there_is_not_is_refused() -> None:
    with pytest.raises(BadInput, match="Unknown embedder 'no such'"):
        check_environment(HotpotQAConfig(search="embeddings", embedder="no such"))


def test_a_seed_is_one_episode_in_any_order_and_width() -> None:
    seeds = [*range(12), *range(10**6, 10**6 + 6)]

    def shown(order: list[int], width: int) -> dict[int, tuple[Any, ...]]:
        environment = HotpotQAConfig(scope="file").make()
        found: dict[int, tuple[Any, ...]] = {}
        for at in range(0, len(order), width):
            part = order[at : at + width]
            starts = environment.reset_many(part)
            steps = environment.step_many(dict.fromkeys(range(len(part)), "search[town of the bridge]"))
            found |= {seed: (starts[slot], steps[slot], environment.content(slot)) for slot, seed in enumerate(part)}
        return found

    assert shown(seeds, 18) == shown(seeds[::-1], 5)


@pytest.mark.parametrize(
    ("actions", "options", "text"),
    [
        ((), {}, "Write search[name] or answer[text], and nothing else."),
        (("search[a]", "Search[b]", "answer[c]"), {"success": True}, "Search for a name in the question, then for the"),
        (("search[a]", "answer[c]"), {"success": True}, "One search can show all that is needed"),
        (("search[a]", "search[b]"), {}, "Answer before the turns run out: 2 searches and no answer[ ] earn nothing."),
        (("answer[c]",), {}, "Do not answer by heart"),
        (("search[a]", "answer[c]"), {"reward": 0.5}, "Answer with the exact words of the paragraph"),
        (("search[a]", "answer[c]"), {}, "Before answer[ ] search for the second name too"),
    ],
)
def test_lessons(actions: tuple[str, ...], options: dict[str, Any], text: str) -> None:
    turns: Any = [SimpleNamespace(action=action, valid=True) for action in actions]
    for guided in (False, True):
        episode: Any = SimpleNamespace(**{"success": False, "reward": 0.0, "guided": guided, **options})
        lesson = lesson_of(episode, turns)
        if guided and episode.success:
            assert lesson.kind == "return"
            continue
        assert lesson.kind == ("update" if guided else "add") and lesson.text is not None
        assert lesson.text.startswith(text)
