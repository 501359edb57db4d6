"""Texts that say less than another: each of their sentences begins a sentence of the other.

A sentence is cut into clauses at commas and at "then"; one begins another where its clauses are the first ones of the
other's. Case, punctuation and white space do not count. A beginning and not any part: what stands before a part may
turn it around ("never offer the coin"). Nothing here needs a model.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

Clauses = tuple[str, ...]
_SENTENCE, _CLAUSE, _WORD = re.compile(r"[.!?;\n]+"), re.compile(r",|\bthen\b"), re.compile(r"\w+")


def sentences(text: str) -> frozenset[Clauses]:
    """The sentences of a text, each as its clauses."""
    found = (
        tuple(" ".join(words) for clause in _CLAUSE.split(sentence) if (words := _WORD.findall(clause)))
        for sentence in _SENTENCE.split(text.casefold())
    )
    return frozenset(each for each in found if each)


def beginnings(text: str) -> frozenset[Clauses]:
    """What the sentences of a text begin with, each sentence itself among them."""
    return frozenset(each[:count] for each in sentences(text) for count in range(1, len(each) + 1))


class Contained:
    """Which of some texts, by digest, say less or more than another one."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._said: dict[str, frozenset[Clauses]] = {}
        self._beginning: dict[Clauses, set[str]] = defaultdict(set)
        self._saying: dict[Clauses, set[str]] = defaultdict(set)
        for digest, text in texts.items():
            self.add(digest, text)

    def add(self, digest: str, text: str) -> None:
        """Know one more text."""
        if digest in self._said:
            return
        self._said[digest] = sentences(text)
        for each in self._said[digest]:
            self._saying[each].add(digest)
        for each in beginnings(text):
            self._beginning[each].add(digest)

    def that_say_more(self, text: str) -> set[str]:
        """Texts that say all that this one says, it itself among them."""
        found = [self._beginning.get(each, set()) for each in sentences(text)]
        return set.intersection(*found) if found else set()

    def that_say_less(self, text: str) -> set[str]:
        """Texts all of which this one says, it itself among them."""
        begun = beginnings(text)
        some = {digest for each in begun for digest in self._saying.get(each, ())}
        return {digest for digest in some if self._said[digest] <= begun}
