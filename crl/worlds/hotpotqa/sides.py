"""The questions of training and the held-out ones, and what is searched for each; shared in a process."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path

from crl.envs.levels import is_held_out
from crl.errors import BadInput
from crl.worlds.hotpotqa.files import find, own_questions, paragraphs_of, read
from crl.worlds.hotpotqa.questions import Paragraph, Question, normalized
from crl.worlds.hotpotqa.search import Search, Way, search_over

_CACHED = 4096
"""Searches over a question's own paragraphs that are kept."""
_LOCK = threading.RLock()


class Side:
    """Questions, and searches over their paragraphs."""

    def __init__(self, questions: Sequence[Question], corpus: Sequence[Paragraph], way: Way, embedder: str) -> None:
        """`corpus`: all paragraphs of the file, where they are searched."""
        self.questions, self.corpus = tuple(questions), corpus
        self._way, self._embedder = way, embedder
        self._of_one = lru_cache(maxsize=_CACHED)(self._search_of)

    @cached_property
    def _whole(self) -> Search:
        return search_over(self.corpus, self._way, self._embedder)

    def _search_of(self, number: int) -> Search:
        return search_over(self.questions[number].paragraphs, self._way, self._embedder)

    def search(self, number: int, *, whole: bool) -> Search:
        """The search of a question: over its own paragraphs, or over those of the whole file."""
        with _LOCK:
            return self._whole if whole else self._of_one(number)


class Sides:
    """Which question a seed means.

    Seeds from `held_out_from` on are the held-out questions, in an order by their hashes, again from the first behind
    the last; seed s below is question s of training modulo their number. A question of training whose words are those
    of a held-out one is left out. Without `held_out_from` seed s is question s of all.
    """

    def __init__(self, train: Side, held_out: Side, first: int | None) -> None:
        """Raises BadInput where a side that seeds mean has no question."""
        self.train, self.held_out_side, self._first = train, held_out, first
        self._order = sorted(range(len(held_out.questions)), key=lambda at: _digest(held_out.questions[at].text))
        kept = {normalized(question.text) for question in held_out.questions} if first is not None else set()
        self._trained = [at for at, each in enumerate(train.questions) if normalized(each.text) not in kept]
        if not ((self._trained and self._order) or (first is None and (self._trained or self._order))):
            raise BadInput(
                f"there is no question {'to train on' if not self._trained else 'that is held out'}: "
                f"{len(train.questions)} and {len(held_out.questions)}, of which none may be on both sides",
                expected="questions on both sides",
                where="environment hotpotqa",
                next_step="name another train_file or held_out_file, or set held_out_from: null",
            )

    @property
    def held_out(self) -> int:
        """How many questions are held out."""
        return len(self._order)

    def of(self, seed: int) -> tuple[Side, int]:
        """The side of a seed, and the number of its question there."""
        if self._first is not None and seed < self._first:
            return self.train, self._trained[seed % len(self._trained)]
        if self._first is not None:
            return self.held_out_side, self._order[(seed - self._first) % len(self._order)]
        at = seed % (len(self._trained) + len(self._order))
        if at < len(self._trained):
            return self.train, self._trained[at]
        return self.held_out_side, self._order[at - len(self._trained)]


def own_sides(first: int | None, way: Way, embedder: str) -> Sides:
    """The questions of this project. Raises BadInput where their files are missing."""
    with _LOCK:
        return _own(first, way, embedder)


def sides_of(
    directory: str | None, names: Sequence[str | None], first: int | None, way: Way, embedder: str, *, alone: bool
) -> Sides:
    """The questions of files: of training, held out (None: a quarter of those of training), and one whose paragraphs
    are searched too (None: none). `alone`: only a question's own paragraphs are searched.

    Raises BadInput where a file is missing or damaged, or a question has nothing to search.
    """
    given = [name for name in names if name is not None]
    paths = dict(zip(given, find(directory, given), strict=True))
    states = tuple(
        None if name is None else (paths[name], paths[name].stat().st_mtime_ns, paths[name].stat().st_size)
        for name in names
    )
    with _LOCK:
        return _filed(states, first, way, embedder, alone)


@lru_cache(maxsize=4)
def _own(first: int | None, way: Way, embedder: str) -> Sides:
    questions = own_questions("train"), own_questions("held_out")
    train, held_out = (Side(each, paragraphs_of(each), way, embedder) for each in questions)
    return Sides(train, held_out, first)


@lru_cache(maxsize=2)
def _filed(
    files: tuple[tuple[Path, int, int] | None, ...], first: int | None, way: Way, embedder: str, alone: bool
) -> Sides:
    train, held_out, more = (None if each is None else each[0] for each in files)
    assert train is not None, "the config names it"
    learned = read(train)
    known = learned if held_out is None or held_out == train else read(held_out)
    extra = [] if more is None else paragraphs_of(read(more))
    sides = []
    for path, questions, kept_out in ((train, learned, False), (held_out or train, known, True)):
        corpus = [] if alone else list(dict.fromkeys([*paragraphs_of(questions), *extra]))
        _check_searchable(path, questions, corpus, alone)
        if known is learned:  # one file for both sides
            questions = [each for each in questions if is_held_out(normalized(each.text)) is kept_out]
        sides.append(Side(questions, corpus, way, embedder))
    return Sides(sides[0], sides[1], first)


def _check_searchable(path: Path, questions: Sequence[Question], corpus: Sequence[Paragraph], alone: bool) -> None:
    bare = [each for each in questions if not each.paragraphs] if alone else []
    if bare or not (corpus or alone):
        raise BadInput(
            f"{len(bare) or len(questions)} of {len(questions)} questions have no paragraphs, such as {bare[0].text!r}"
            if bare
            else "the file has questions and no paragraph",
            expected="something to search for each question",
            where=str(path),
            next_step="name a file that has paragraphs as paragraphs_file, and set scope: file",
        )


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
