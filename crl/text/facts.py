"""Whether two texts that are nearly alike say different things: other numbers, a denial, or another order.

Embedders hardly tell "coin, wine, mask" from "mask, wine, coin", or 30 seconds from 300. This is no understanding of
either text. It finds what is plain in English; where it finds nothing, the embedder decides.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

_TOKEN = re.compile(r"[^\W_]*\d[\d.,]*\d[^\W_]*|[^\W_]*\d[^\W_]*|[^\W\d_]+(?:['’][^\W\d_]+)?|->|[→,;:.!?\n]")


def _listed(words: str) -> list[str]:
    return words.split()


_NUMBERS = {
    word: str(number)
    for number, word in enumerate(
        _listed(
            "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
            "eighteen nineteen twenty"
        ),
        start=2,
    )
} | {"twice": "2", "thrice": "3", "second": "2nd", "third": "3rd", "fourth": "4th", "fifth": "5th"}
_DENIALS = frozenset(
    _listed(
        "not no never without neither nor none nothing nobody cannot unless except avoid avoids avoiding refrain stop"
    )
)
_UNORDERED = frozenset(_listed("when whenever if while because since unless where although though as so but which who"))
_EARLIER, _LATER = frozenset({"after", "once"}), frozenset({"before", "until", "till"})
_NEXT = frozenset({"then", "next", "afterwards", "finally", "lastly", "later", "->", "→", ";"})
_CONNECTING = _UNORDERED | _EARLIER | _LATER | _NEXT
_ENDS = frozenset(".!?\n")
_IGNORED = frozenset(
    _listed(
        "a an the it its this that these those to of in on at is are be been was were do does did you your we our i "
        "they their them and or with for by from will should must can may first please just also always there here "
        "have has such other only"
    )
)
_ITEM = 2
"""Words of an item of a list such as "coin, red wine and mask"."""
_SHORT = 3
"""Words of a sentence, such as a move, whose place among others says when it is to be done."""


def differ(first: str, second: str) -> bool:
    """Whether two texts plainly say different things."""
    one, other = _words(first), _words(second)
    if _numbers(one) != _numbers(other) or _denied(one, other):
        return True
    return _reordered(_events(one), _events(other)) or _exchanged(one, other)


def _words(text: str) -> list[str]:
    """Words, numbers and stops. A single capital letter is a name, unless it is an article."""
    found = []
    tokens = _TOKEN.findall(text)
    named = any(token == "A" and at and tokens[at - 1] not in _ENDS for at, token in enumerate(tokens))
    for token in tokens:
        if len(token) == 1 and token.isupper() and (token not in "AI" or (token == "A" and named)):
            found.append(token)
        else:
            word = token.casefold().replace("’", "'")
            found += [_NUMBERS.get(word, word)] if not word.endswith("n't") else [word.removesuffix("n't"), "not"]
    return found


def _numbers(words: Sequence[str]) -> set[str]:
    return {word.strip(".,") for word in words if any(letter.isdigit() for letter in word)}


def _denied(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether one of two texts denies and the other does not, or they are alike but for how often they do."""
    mine, others = (sum(word in _DENIALS for word in words) for words in (one, other))
    if bool(mine) != bool(others):
        return True
    return mine != others and _bag(one) == _bag(other)


def _content(words: Sequence[str]) -> list[str]:
    return [word for word in words if word not in _IGNORED and _is_word(word)]


def _bag(words: Sequence[str]) -> Counter[str]:
    return Counter(word for word in _content(words) if word not in _DENIALS | _CONNECTING)


def _sentences(words: Sequence[str]) -> Iterator[list[str]]:
    sentence: list[str] = []
    for word in [*words, "."]:
        if word in _ENDS:
            if sentence:
                yield sentence
            sentence = []
        else:
            sentence.append(word)


def _events(words: Sequence[str]) -> list[list[str]]:
    """What is said to come first, then what comes next. Longer sentences are no events one after the other."""
    found: list[list[str]] = []
    short = all(len(_content(sentence)) <= _SHORT for sentence in _sentences(words))
    for sentence in _sentences(words):
        parts = [content for part in _parts(sentence) if (content := _content(part))]
        if found and not short and len(parts) == 1:
            continue
        found += parts
    return found


def _parts(sentence: Sequence[str]) -> list[list[str]]:
    """The parts of a sentence in the order of time: at `then`, `before`, `after`, commas of a list."""
    if sentence and sentence[0] in _UNORDERED | _EARLIER | _LATER | {"to"} and "," in sentence:
        comma = sentence.index(",")
        clause, main = list(sentence[1:comma]), _parts(sentence[comma + 1 :])
        if sentence[0] in _UNORDERED | {"to"}:  # it says under what conditions, not when
            return [[*clause, *main[0]], *main[1:]] if main else [clause]
        return [clause, *main] if sentence[0] in _EARLIER else [*main, clause]
    for at, word in enumerate(sentence):
        before, after = list(sentence[:at]), sentence[at + 1 :]
        if word in _LATER and at:
            return [*_parts(before), *_parts(after)]
        if word in _EARLIER and at:
            return [*_parts(after), *_parts(before)]
    parts: list[list[str]] = [[]]
    for at, word in enumerate(sentence):
        following = next((each for each in sentence[at + 1 :] if each not in ("and", "or")), "")
        listed = word in ("and", "or") and len(parts) > 1 and len(_content(parts[-1])) <= _ITEM
        if word in _NEXT or listed or (word == "," and following not in _UNORDERED):
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _reordered(one: Sequence[Sequence[str]], other: Sequence[Sequence[str]]) -> bool:
    """Whether two things come in one order here and in the other there."""
    mine, others = _places(one), _places(other)
    shared = [(mine[each], others[each]) for each in mine.keys() & others.keys()]
    return any(a < c and b > d for a, b in shared for c, d in shared)


def _places(events: Sequence[Sequence[str]]) -> dict[tuple[str, int], int]:
    """The event that each word is of, by how often the word was there before."""
    seen: Counter[str] = Counter()
    found = {}
    for at, event in enumerate(events):
        for word in map(_stem, event):
            found[word, seen[word]] = at
            seen[word] += 1
    return found


def _stem(word: str) -> str:
    """A word as far as its forms have it in common: heat, heats, heated, heating."""
    return re.sub(r"(?<=\w{3})(ing|ed|es|s|e)$", "", word)


def _exchanged(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether the very same words are there and some have changed places, but for parts that moved as a whole."""
    if Counter(filter(_is_word, one)) != Counter(filter(_is_word, other)):
        return False
    mine, others = _sorted(one), _sorted(other)
    return not any(mine[at:] + mine[:at] == others for at in range(max(1, len(mine))))


def _is_word(word: str) -> bool:
    return word[0].isalnum()


def _sorted(words: Sequence[str]) -> list[str]:
    """Content words, sentences and both sides of an `and` or `or` in alphabetical order."""
    sentences = []
    for sentence in _sentences(words):
        kept: list[str] = []
        joined = False
        for word in sentence:
            if word in ("and", "or"):
                joined = bool(kept)
            elif _is_word(word) and word not in _IGNORED | _CONNECTING:
                kept.append(word)
                if joined:
                    kept[-2:] = sorted(kept[-2:])
                joined = False
        sentences.append(kept)
    return [word for sentence in sorted(sentences) for word in sentence]
