"""A pattern for whole paths."""

from collections.abc import Iterable

from globs.parts import Piece, fits, pieces

_ANY = None
"""The part `**`."""


class Matcher:
    """A pattern. `hidden`: stars and classes may stand for a dot at the beginning of a name."""

    def __init__(self, pattern: str, hidden: bool = False) -> None:
        self.pattern = pattern
        self.hidden = hidden
        self._parts: list[tuple[str, list[Piece]] | None] = []
        offset = 0
        for part in pattern.split("/"):
            if part == "**":
                if not self._parts or self._parts[-1] is not _ANY:
                    self._parts.append(_ANY)
            else:
                self._parts.append((part, pieces(part, offset)))
            offset += len(part) + 1

    def matches(self, path: str) -> bool:
        """Whether the whole path fits. It is compared part by part; `**` takes any number of them, also none."""
        names = path.split("/")
        reached = {0}
        for name in names:
            reached = self._after(self._closed(reached), name)
            if not reached:
                return False
        return len(self._parts) in self._closed(reached)

    def filter(self, paths: Iterable[str]) -> list[str]:
        """The paths that match, in their order."""
        return [path for path in paths if self.matches(path)]

    def _closed(self, places: set[int]) -> set[int]:
        """Places in the pattern, and those behind a `**` that takes nothing."""
        found = set(places)
        for place in places:
            if place < len(self._parts) and self._parts[place] is _ANY:
                found.add(place + 1)
        return found

    def _after(self, places: set[int], name: str) -> set[int]:
        """The places in the pattern after one more name."""
        found = set()
        for place in places:
            if place == len(self._parts):
                continue
            part = self._parts[place]
            if part is _ANY:
                if self.hidden or not name.startswith("."):
                    found.add(place)
            elif self._fits(part, name):
                found.add(place + 1)
        return found

    def _fits(self, part: tuple[str, list[Piece]], name: str) -> bool:
        text, found = part
        if name.startswith(".") and not self.hidden and not text.startswith((".", "\\.")):
            return False
        return fits(found, name)
