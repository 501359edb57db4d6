"""Questions with search as a batched text environment: its settings, and a wave of questions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from crl.config.environments import EnvironmentConfig, HeldOutFrom
from crl.envs.slots import Slots, stepped, with_ending
from crl.protocols import FreeText, Lesson, Start, Step, StopReason
from crl.records import Episode, OutsideRows, Turn
from crl.worlds.hotpotqa.files import DISTRACTOR, FULLWIKI, TRAIN, find
from crl.worlds.hotpotqa.oracle import lesson_of, next_action
from crl.worlds.hotpotqa.questions import (
    LEAST_F1,
    Paragraph,
    Question,
    Score,
    normalized,
    reward_of,
    rows_from,
    score_of,
)
from crl.worlds.hotpotqa.search import Search, Way
from crl.worlds.hotpotqa.sides import Sides, own_sides, sides_of

FORM = FreeText("search[query] or answer[text]")
_ACTION = re.compile(r"\s*(search|answer)\[(.+)\]", re.IGNORECASE | re.DOTALL)
_REFUSAL = (
    "That is no action. Possible: search[query], which shows paragraphs, or answer[text], which ends the episode."
)
_LONGEST_QUERY = 1000
_FILES = ("train", "held_out", "paragraphs")


class HotpotQAConfig(EnvironmentConfig):
    """Questions whose answer follows from two paragraphs: search, then answer."""

    model_config = ConfigDict(title="HotpotQA")

    PATHS: ClassVar[tuple[str, ...]] = ("directory", "train_file", "held_out_file", "paragraphs_file")

    kind: Literal["hotpotqa"] = "hotpotqa"
    questions: Literal["own", "distractor", "fullwiki", "files"] = Field(
        "own",
        description="own: questions shipped with crl; distractor, fullwiki: HotpotQA's training questions, with "
        "the development questions of that setting held out; files: your files below.",
    )
    directory: str | None = Field(
        None, min_length=1, description="Folder of HotpotQA's files; null: $HOTPOTQA_DATA, else ~/.cache/hotpotqa."
    )
    train_file: str | None = Field(None, min_length=1, description="Training questions, for questions: files.")
    held_out_file: str | None = Field(
        None,
        min_length=1,
        description="Held-out questions, for questions: files; null: a quarter of train_file, by a hash of their "
        "words.",
    )
    paragraphs_file: str | None = Field(
        None,
        min_length=1,
        description="More questions whose paragraphs are searched, for questions: files and scope: file.",
    )
    scope: Literal["question", "file"] = Field(
        "question",
        description="Search the question's own paragraphs, or those of all questions in its file.",
    )
    search: Way = Field("bm25", description="By words (BM25) or by embeddings.")
    embedder: str = Field(
        "minilm",
        description="Embedder for search: embeddings. minilm, lexical or a sentence-transformers model.",
    )
    results: int = Field(3, ge=1, le=50, description="Most paragraphs per search.")
    paragraph_characters: int | None = Field(
        None, ge=20, le=1_000_000, description="Characters shown per paragraph; null: all."
    )
    max_turns: int = Field(5, ge=1, le=1000, description="Turns after which an episode is lost.")
    min_f1: float = Field(
        LEAST_F1,
        ge=0,
        le=1,
        description="An inexact answer earns its F1 from here on, and 0 below.",
    )
    feedback: Literal["evidence", "outcome", "none"] = Field(
        "evidence",
        description="What the last observation says. outcome: how close the answer was; evidence: which needed "
        "paragraphs were found, too. It never names the answer.",
    )
    held_out_from: HeldOutFrom = 1_000_000

    @model_validator(mode="after")
    def _files(self) -> HotpotQAConfig:
        named = [name for name in ("train_file", "held_out_file", "paragraphs_file") if getattr(self, name) is not None]
        if self.questions == "files" and self.train_file is None:
            raise ValueError("questions: files needs train_file")
        if self.questions != "files" and named:
            raise ValueError(f"{', '.join(named)} needs questions: files, found questions: {self.questions}")
        if self.paragraphs_file is not None and self.scope == "question":
            raise ValueError("paragraphs_file is searched with scope: file only, found scope: question")
        return self

    @property
    def held_out_levels(self) -> int | None:
        """The number of held-out questions. Raises BadInput where the files are missing."""
        return None if self.held_out_from is None else self.sides().held_out

    def sides(self) -> Sides:
        """The questions. Raises BadInput where their files are missing or damaged."""
        if self.questions == "own":
            return own_sides(self.held_out_from, self.search, self.embedder)
        return sides_of(
            self.directory, self._names(), self.held_out_from, self.search, self.embedder,
            alone=self.scope == "question",
        )  # fmt: skip

    def _names(self) -> tuple[str, str | None, str | None]:
        """Files of the questions of training, of the held-out ones, and of further paragraphs."""
        if self.questions == "files":
            assert self.train_file is not None
            return self.train_file, self.held_out_file, self.paragraphs_file
        return TRAIN, DISTRACTOR if self.questions == "distractor" else FULLWIKI, None

    def data_files(self) -> dict[str, Path]:
        """The files of the questions, unless they are our own. Raises BadInput where one is missing."""
        names = (None, None, None) if self.questions == "own" else self._names()
        named = {f"{which}_file": name for which, name in zip(_FILES, names, strict=True) if name is not None}
        found = dict(zip(named, find(self.directory, list(named.values())), strict=True))
        if self.search == "embeddings" and (model := Path(self.embedder).expanduser()).is_dir():
            found["embedder"] = model
        return found

    def outside_rows(self) -> Iterator[OutsideRows]:
        """The questions of files, file by file. Raises BadInput as :meth:`sides`."""
        if self.questions == "own":
            return
        train, held_out, _ = self._names()
        sides = self.sides()
        listed = {train: list(sides.train.questions)}
        listed[held_out or train] = [*listed.get(held_out or train, ()), *sides.held_out_side.questions]
        for name, questions in listed.items():
            yield rows_from(questions, name)

    def make(self) -> HotpotQAEnvironment:
        """A wave of questions. Raises BadInput where files or the embedder are missing, or a record is malformed."""
        return HotpotQAEnvironment(self)


@dataclass
class _Slot:
    question: Question
    search: Search
    observation: str
    found: dict[str, Paragraph] = field(default_factory=dict)
    """Paragraphs that were shown, by title."""
    queries: list[str] = field(default_factory=list)
    turns: int = 0
    done: bool = False


class HotpotQAEnvironment(Slots[_Slot]):
    """A wave of questions (protocols `Environment`, `Leveled`, `Instructive`). Success is an exact match; the reward
    is 1 for one, else the F1 from `min_f1` on.

    An answer ends an episode; so does the turn limit, with 0. What is no action spends a turn and changes nothing.
    """

    def __init__(self, config: HotpotQAConfig) -> None:
        """Raises BadInput where files or the embedder are missing, or a record is malformed."""
        super().__init__()
        self.config = config
        self._sides = config.sides()

    def question_of(self, seed: int) -> Question:
        """The question of a seed."""
        side, number = self._sides.of(seed)
        return side.questions[number]

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start `len(seeds)` episodes, slot i with the question of seeds[i]."""
        self._slots = [self._slot(seed) for seed in seeds]
        return [Start(slot.question.text, self._page(slot), FORM) for slot in self._slots]

    def _slot(self, seed: int) -> _Slot:
        side, number = self._sides.of(seed)
        search = side.search(number, whole=self.config.scope == "file")
        count = len(search.paragraphs)
        return _Slot(side.questions[number], search, f"{count} paragraphs can be searched.")

    def _page(self, slot: _Slot) -> str:
        return f"{slot.observation}\nTurns left: {self.config.max_turns - slot.turns}."

    def _step(self, slot: _Slot, action: str | None) -> Step:
        parsed = parse_action(action)
        score = None
        if parsed is not None and parsed[0] == "search":
            self._search(slot, parsed[1])
        elif parsed is not None:
            score = score_of(parsed[1], slot.question.answer)
            slot.observation = f"Answered: {parsed[1]}"
        reason = None
        if score is not None:
            reason = StopReason.success if score.exact else StopReason.failure
        elif slot.turns >= self.config.max_turns:
            reason = StopReason.turn_limit
        said = [] if parsed is not None else [_REFUSAL]
        if reason is not None and self.config.feedback != "none":
            said.append(self._verdict(slot, score))
        observation = slot.observation if reason is not None else self._page(slot)
        if reason is StopReason.turn_limit:
            observation = with_ending(observation, reason)
        reward = 0.0 if score is None else reward_of(score, self.config.min_f1)
        return stepped(slot, reason, observation, FORM, " ".join(said), legal=parsed is not None, reward=reward)

    def _search(self, slot: _Slot, query: str) -> None:
        found = slot.search.find(query[:_LONGEST_QUERY], self.config.results)
        slot.queries.append(query)
        slot.found.update((paragraph.title, paragraph) for paragraph in found)
        listed = [f"[{place}] {self._shown(paragraph)}" for place, paragraph in enumerate(found, start=1)]
        slot.observation = "\n".join([f"Found for {query}:", *listed]) if listed else f"Nothing is found for {query}."

    def _shown(self, paragraph: Paragraph) -> str:
        text, most = paragraph.text, self.config.paragraph_characters
        return f"{paragraph.title}: {text if most is None or len(text) <= most else text[:most].rstrip() + ' …'}"

    def _verdict(self, slot: _Slot, score: Score | None) -> str:
        """What is said of the whole episode; it does not tell the answer."""
        if score is None:
            said = "No answer was given."
        elif score.exact:
            said = "The answer is right."
        elif score.f1 > 0:
            said = f"The answer is not exact: its words match with F1 {score.f1:.2f}."
        else:
            said = "The answer is wrong."
        support = slot.question.support
        if self.config.feedback == "outcome" or not support:
            return said
        seen = [title for title in support if title in slot.found]
        names = f": {', '.join(seen)}" if seen else ""
        return f"{said} Of the {len(support)} paragraphs that it follows from, {len(seen)} were found{names}."

    def oracle(self, slot: int) -> str | None:
        """The next action of a reader who knows the answer and what it follows from; None when the episode is done."""
        state = self._slots[slot]
        if state.done:
            return None
        return next_action(state.question, state.found, state.queries, self.config.max_turns - state.turns)

    def content(self, slot: int) -> str:
        """The words of a slot's question."""
        return normalized(self._slots[slot].question.text)

    def lesson(self, episode: Episode, turns: Sequence[Turn]) -> Lesson:
        """What an episode teaches, for demonstrations."""
        return lesson_of(episode, turns)


def parse_action(action: str | None) -> tuple[str, str] | None:
    """What an action does and with what: ("search", query) or ("answer", text); None for anything else."""
    found = _ACTION.match(action or "")
    text = "" if found is None else " ".join(_inside(found[2]).split())
    return None if found is None or not text else (found[1].lower(), text)


def _inside(text: str) -> str:
    """What is before the bracket that closes; all of it where brackets do not pair."""
    depth = 1
    for place, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if not depth:
            return text[:place]
    return text
