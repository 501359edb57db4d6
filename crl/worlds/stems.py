"""Stems of English words by Porter's algorithm, which WebShop's index uses: M. F. Porter, "An algorithm for
suffix stripping", Program 14(3), 1980, with the two rules its author added later (`bli`, `logi`).

Written from the published rules. The paper's measure is how often a vowel is followed by a consonant.
"""

from __future__ import annotations

from collections.abc import Mapping

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
