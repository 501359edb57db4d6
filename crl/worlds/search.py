"""Search over texts: BM25 (k1 0.9, b 0.4) over stemmed English words, equal scores in the order of ids.

It does what WebShop's index does (Pyserini's defaults, over Lucene): words by Unicode's rules, possessives
cut, 33 stop words dropped, Porter stems, and lengths of documents rounded as Lucene stores them (a word more or less of
a long text changes nothing). Left out: its limit of 255 characters per word, and emoji as words.

The index is a matrix of postings in numpy arrays, with the score of each posting: a search adds up those of its words.

Stems are written from the published rules: M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980, with
the two rules its author added later (`bli`, `logi`). The paper's measure is how often a vowel is followed by a
consonant.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

_STEP_2: Mapping[str, str] = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble", "alli": "al",
    "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al",
    "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble", "logi": "log",
}  # fmt: skip
_STEP_3: Mapping[str, str] = {
    "icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": "",
}  # fmt: skip
_ENDINGS_4 = "al ance ence er ic able ible ant ement ment ent ion ou ism ate iti ous ive ize"
_STEP_4: Mapping[str, str] = dict.fromkeys(_ENDINGS_4.split(" "), "")
K1, B = 0.9, 0.4
RESULTS = 50
"""Documents that a search finds at most, unless it says otherwise."""
_STOP = """
a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was
will with
"""
_STOP_WORDS = frozenset(_STOP.split())
# A dot, an apostrophe or a colon joins letters, a dot or a comma digits: "d.o.n", "women's", "1,847.00". Ideographs and
# hiragana are words of one character.
_WORD = re.compile(
    r"[\u2e80-\u2fdf\u3005-\u3007\u3041-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
    r"|\w(?:\w|(?<=[^\W\d_])[.'’:·](?=[^\W\d_])|(?<=\d)[.,;'’](?=\d))*"
)
_POSSESSIVE = re.compile(r"['’＇]s$")
_ASCII_WORD = re.compile(r"\w(?:\w|(?<=[^\W\d_])[.':](?=[^\W\d_])|(?<=\d)[.,;'](?=\d))*", re.ASCII)


def stem(word: str) -> str:
    """The stem of a lower-case word; words of one or two letters are their own."""
    if len(word) <= 2:
        return word
    word = _without_ending(_without_plural(word))
    if word.endswith("y") and "v" in _form(word[:-1]):
        word = word[:-1] + "i"
    word = _replaced(word, _STEP_2, 1)
    word = _replaced(word, _STEP_3, 1)
    word = _replaced(word, _STEP_4, 2)
    return _tidied(word)


def _form(word: str) -> str:
    """`v` for each vowel and `c` for each consonant; y is a vowel behind a consonant."""
    form = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and form.endswith("c"))
        form += "v" if vowel else "c"
    return form


def _measure(word: str) -> int:
    return _form(word).count("vc")


def _double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _form(word)[-1] == "c"


def _short_end(word: str) -> bool:
    """Whether it ends consonant, vowel, consonant, and the last is none of w, x, y."""
    return _form(word).endswith("cvc") and word[-1] not in "wxy"


def _without_plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _without_ending(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    end = 2 if word.endswith("ed") else 3 if word.endswith("ing") else 0
    if not end or "v" not in _form(word[:-end]):
        return word
    word = word[:-end]
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if _double(word) and word[-1] not in "lsz":
        return word[:-1]
    return word + "e" if _measure(word) == 1 and _short_end(word) else word


def _replaced(word: str, endings: Mapping[str, str], least: int) -> str:
    """The word with its longest listed ending replaced, where what is before it measures `least`."""
    for length in range(min(7, len(word)), 1, -1):
        ending = word[-length:]
        if ending not in endings:
            continue
        rest = word[:-length]
        if ending == "ion" and not rest.endswith(("s", "t")):
            return word
        return rest + endings[ending] if _measure(rest) >= least else word
    return word


def _tidied(word: str) -> str:
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _short_end(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word


class _Vocabulary(dict[str, int]):
    """Number of every word's stem; -1 for words that are not searched."""

    def __init__(self) -> None:
        super().__init__()
        self.stems: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        term = term_of(word)
        number = -1 if term is None else self.stems.setdefault(term, len(self.stems))
        self[word] = number
        return number


def words(text: str) -> list[str]:
    """The words of a text, lower-cased, in order."""
    return (_ASCII_WORD if text.isascii() else _WORD).findall(text.lower())


def term_of(word: str) -> str | None:
    """What is searched for a lower-case word: its stem; None for stop words and underscores."""
    bare = _POSSESSIVE.sub("", word)
    return None if bare in _STOP_WORDS or not bare.strip("_") else stem(bare)


def stored_length(words_of_document: int) -> int:
    """A document's length as Lucene keeps it: exact up to 24 + 15, then with four significant bits."""
    above = words_of_document - 24
    drop = max(0, above.bit_length() - 4) if above > 0 else 0
    return words_of_document if not drop else 24 + (above >> drop << drop)


class SearchIndex:
    """Postings of all documents; `search` gives their numbers, best first."""

    def __init__(self, ids: Sequence[str], documents: Iterable[str]) -> None:
        """`documents[i]` is the text of `ids[i]`."""
        vocabulary, lengths, pieces = _Vocabulary(), [], []
        for document in documents:
            numbers = np.fromiter(map(vocabulary.__getitem__, words(document)), np.int32)
            numbers = numbers[numbers >= 0]
            lengths.append(len(numbers))
            pieces.append(numbers)
        self.size = len(lengths)
        self._stems = vocabulary.stems
        lengths_N = np.array(lengths, dtype=np.int64)
        documents_P = np.repeat(np.arange(self.size, dtype=np.int64), lengths_N)
        terms_P = np.concatenate([*pieces, np.zeros(0, np.int32)])
        del pieces
        keys_P = terms_P * np.int64(max(1, self.size)) + documents_P
        del documents_P, terms_P
        keys_P.sort()
        first_P = np.flatnonzero(np.diff(keys_P, prepend=-1))
        counts_P = np.diff(first_P, append=len(keys_P)).astype(np.float32)
        keys_P = keys_P[first_P]
        self._documents_P = (keys_P % max(1, self.size)).astype(np.int32)
        terms_P = keys_P // max(1, self.size)
        self._starts_V = np.searchsorted(terms_P, np.arange(len(self._stems) + 1))
        self._scores_P = self._scored(terms_P, counts_P, lengths_N)
        order = sorted(range(self.size), key=ids.__getitem__)
        self._id_order_N = np.empty(self.size, dtype=np.int64)
        self._id_order_N[order] = np.arange(self.size)

    def _scored(
        self, terms_P: NDArray[np.int64], counts_P: NDArray[np.float32], lengths_N: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """What each posting adds to a document's score, in Lucene's single precision."""
        filled = max(1, int((lengths_N > 0).sum()))
        average = np.float32(max(1, int(lengths_N.sum())) / filled)
        stored_N = np.array([stored_length(int(length)) for length in lengths_N], dtype=np.float32)
        inverse_N = np.float32(1) / (np.float32(K1) * (np.float32(1 - B) + np.float32(B) * stored_N / average))
        found_V = np.diff(self._starts_V)
        idf_V = np.array([math.log1p((filled - n + 0.5) / (n + 0.5)) for n in found_V.tolist()], dtype=np.float32)
        weights_P = idf_V[terms_P]
        scores_P = weights_P - weights_P / (np.float32(1) + counts_P * inverse_N[self._documents_P])
        return np.asarray(scores_P, dtype=np.float32)

    def search(self, query: str, limit: int = RESULTS) -> list[int]:
        """Numbers of the best documents that hold a word of the query, at most `limit`."""
        terms = Counter(filter(None, map(term_of, words(query))))
        slices = [(self._stems[term], count) for term, count in terms.items() if term in self._stems]
        if not slices:
            return []
        ranges = [(slice(self._starts_V[term], self._starts_V[term + 1]), count) for term, count in slices]
        scores_N = np.bincount(
            np.concatenate([self._documents_P[each] for each, _ in ranges]),
            weights=np.concatenate([self._scores_P[each] * np.float32(count) for each, count in ranges]),
            minlength=self.size,
        ).astype(np.float32)
        found = int((scores_N > 0).sum())
        least = np.partition(scores_N, self.size - limit)[self.size - limit] if found > limit else np.float32(0)
        best = np.flatnonzero(scores_N >= least if least > 0 else scores_N > 0)
        ordered = best[np.lexsort((self._id_order_N[best], -scores_N[best]))]
        return [int(number) for number in ordered[:limit]]
