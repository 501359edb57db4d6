"""One part of a pattern, between two slashes: what it is made of, and whether a name fits."""

from collections.abc import Callable


class PatternError(ValueError):
    """`position` counts the characters of the pattern from 0."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(f"{message} at {position}")
        self.position = position


class Star:
    """Any number of characters."""


Piece = Star | Callable[[str], bool]
STAR = Star()


def pieces(part: str, offset: int = 0) -> list[Piece]:
    """The pieces of a part that begins at `offset` of the pattern. Several stars in a row are one."""
    found: list[Piece] = []
    at = 0
    while at < len(part):
        character = part[at]
        if character == "*":
            if not found or found[-1] is not STAR:
                found.append(STAR)
        elif character == "?":
            found.append(lambda letter: True)
        elif character == "[":
            end = _end_of_class(part, at, offset)
            found.append(_one_of(part[at + 1 : end], offset + at))
            at = end
        else:
            if character == "\\":
                at += 1
                if at == len(part):
                    raise PatternError("nothing behind the backslash", offset + at - 1)
            found.append(part[at].__eq__)
        at += 1
    return found


def fits(found: list[Piece], name: str) -> bool:
    """Whether a name fits. On a mismatch only the last star takes one character more, so that the time is at most
    the product of both lengths."""
    piece = letter = 0
    star, resume = -1, 0
    while letter < len(name):
        if piece < len(found) and found[piece] is STAR:
            star, resume = piece, letter
            piece += 1
        elif piece < len(found) and found[piece](name[letter]):
            piece += 1
            letter += 1
        elif star >= 0:
            resume += 1
            piece, letter = star + 1, resume
        else:
            return False
    return all(each is STAR for each in found[piece:])


def _end_of_class(part: str, start: int, offset: int) -> int:
    at = start + 1
    if part[at : at + 1] == "!":
        at += 1
    if part[at : at + 1] == "]":
        at += 1
    end = part.find("]", at)
    if end < 0:
        raise PatternError("[ without ]", offset + start)
    return end


def _one_of(members: str, position: int) -> Callable[[str], bool]:
    negated = members.startswith("!")
    if negated:
        members = members[1:]
    ranges = []
    at = 0
    while at < len(members):
        if members[at + 1 : at + 2] == "-" and at + 2 < len(members):
            first, last = members[at], members[at + 2]
            if last < first:
                raise PatternError(f"the range {first}-{last} is empty", position)
            ranges.append((first, last))
            at += 3
        else:
            ranges.append((members[at], members[at]))
            at += 1
    return lambda letter: any(first <= letter <= last for first, last in ranges) != negated
