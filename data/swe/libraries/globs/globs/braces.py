"""Alternatives in braces."""

from itertools import pairwise

from globs.parts import PatternError


def expand(pattern: str) -> list[str]:
    """The patterns that one with `{a,b}` stands for, from left to right; braces may be inside of others.

    Braces without a comma are text, as are those behind a backslash, which stays.
    """
    start = _find(pattern, "{", 0)
    if start < 0:
        return [pattern]
    end, commas = _group(pattern, start)
    if not commas:
        head = pattern[: start + 1]
        return [head + rest for rest in expand(pattern[start + 1 :])]
    bounds = [start, *commas, end]
    tails = expand(pattern[end + 1 :])
    found = []
    for left, right in pairwise(bounds):
        for middle in expand(pattern[left + 1 : right]):
            found += [pattern[:start] + middle + tail for tail in tails]
    return found


def _find(pattern: str, character: str, at: int) -> int:
    """Where a character is that has no backslash in front of it, or -1."""
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 1
        elif pattern[at] == character:
            return at
        at += 1
    return -1


def _group(pattern: str, start: int) -> tuple[int, list[int]]:
    """Where the brace that opens at `start` closes, and the commas between that are in no other brace."""
    depth, commas, at = 0, [], start
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            at += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return at, commas
        elif character == "," and depth == 1:
            commas.append(at)
        at += 1
    raise PatternError("{ without }", start)
