"""A set of whole numbers, kept as sorted spans that neither overlap nor touch."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class SpanSet:
    """Half-open spans `[start, stop)`. `starts` and `stops` run in parallel, both rising."""

    def __init__(self, spans: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in spans:
            self.add(start, stop)

    def add(self, start: int, stop: int) -> None:
        """Put a span in; spans that it overlaps or touches become one with it."""
        _check(start, stop)
        if start == stop:
            return
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        if first < last:
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]

    def remove(self, start: int, stop: int) -> None:
        """Take a span out; spans that reach beyond it are cut."""
        _check(start, stop)
        if start == stop:
            return
        first = bisect_right(self._stops, start)
        last = bisect_left(self._starts, stop)
        if first >= last:
            return
        kept = []
        if self._starts[first] < start:
            kept.append((self._starts[first], start))
        if self._stops[last - 1] > stop:
            kept.append((stop, self._stops[last - 1]))
        self._starts[first:last] = [span[0] for span in kept]
        self._stops[first:last] = [span[1] for span in kept]

    def overlaps(self, start: int, stop: int) -> bool:
        """Whether any number of a span is in the set. Touching is no overlap."""
        _check(start, stop)
        index = bisect_right(self._stops, start)
        return start < stop and index < len(self._starts) and self._starts[index] < stop

    def span_of(self, number: int) -> tuple[int, int] | None:
        """The span that holds a number, or None."""
        index = bisect_right(self._starts, number) - 1
        if index >= 0 and number < self._stops[index]:
            return self._starts[index], self._stops[index]
        return None

    def gaps(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The spans between `start` and `stop` that are not in the set, in order."""
        _check(start, stop)
        found, at = [], start
        for left, right in self:
            if right <= start:
                continue
            if left >= stop:
                break
            if left > at:
                found.append((at, left))
            at = right
        if at < stop:
            found.append((at, stop))
        return found

    def first_gap(self, size: int, start: int = 0) -> int:
        """The smallest number from `start` on where a span of `size` fits without overlap."""
        if size < 1:
            raise ValueError("size must be at least 1")
        at = start
        for left, right in self:
            if right <= at:
                continue
            if left - at >= size:
                break
            at = right
        return at

    @property
    def measure(self) -> int:
        """How many numbers are in the set."""
        return sum(stop - start for start, stop in self)

    def copy(self) -> "SpanSet":
        twin = SpanSet()
        twin._starts, twin._stops = list(self._starts), list(self._stops)
        return twin

    def __contains__(self, number: int) -> bool:
        return self.span_of(number) is not None

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._starts, self._stops, strict=True)))

    def __len__(self) -> int:
        """How many spans there are."""
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SpanSet):
            return NotImplemented
        return self._starts == other._starts and self._stops == other._stops

    __hash__ = None  # type: ignore[assignment]

    def __or__(self, other: "SpanSet") -> "SpanSet":
        result = self.copy()
        for start, stop in other:
            result.add(start, stop)
        return result

    def __sub__(self, other: "SpanSet") -> "SpanSet":
        result = self.copy()
        for start, stop in other:
            result.remove(start, stop)
        return result

    def __and__(self, other: "SpanSet") -> "SpanSet":
        """Both lists are walked once, side by side."""
        result = SpanSet()
        mine = theirs = 0
        while mine < len(self) and theirs < len(other):
            start = max(self._starts[mine], other._starts[theirs])
            stop = min(self._stops[mine], other._stops[theirs])
            if start < stop:
                result.add(start, stop)
            if self._stops[mine] < other._stops[theirs]:
                mine += 1
            else:
                theirs += 1
        return result

    def __xor__(self, other: "SpanSet") -> "SpanSet":
        return (self - other) | (other - self)

    def __repr__(self) -> str:
        return f"SpanSet({list(self)})"

    def __str__(self) -> str:
        from spans.text import format_spans

        return format_spans(self)


def _check(start: int, stop: int) -> None:
    if stop < start:
        raise ValueError(f"a span ends before it starts: {start}, {stop}")
