"""One turn while it is sampled: free text up to an end, or one of the answers that the row may give.

Among answers, ids that leave no choice (the rest of a word, the end of the turn) are appended without being drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from crl.config import SamplingConfig
from crl.protocols import Answers, Sampled, StopReason


class StopStrings:
    """Whether a turn contains one of the strings that end it, asked after each id."""

    def __init__(
        self, strings: Sequence[str], decode: Callable[[Sequence[int]], str], control: Mapping[str, int] | None = None
    ) -> None:
        """`decode`: the text of ids, in which control tokens are not seen; `control`: their ids by their names."""
        self._strings, self._decode = strings, decode
        self._ids = {index for text, index in (control or {}).items() if any(string in text for string in strings)}
        # An id is at least one byte of text: no string is spread over more of them.
        self._longest = max((len(string.encode()) for string in strings), default=0)

    def in_last(self, ids: Sequence[int]) -> bool:
        """Whether the last of these ids completes one of the strings."""
        if not self._strings:
            return False
        # Some tokenizers lose the blank that a text begins with, or all of one that begins inside a character: a text
        # that begins up to four ids earlier begins before the string, and between two characters.
        found = (self._decode(ids[-(self._longest + more) :]) for more in range(1, 5))
        return ids[-1] in self._ids or any(string in text for text in found for string in self._strings)


class Turn:
    """The ids of one row's turn so far.

    Attributes:
        room: most ids it may have.
        stop_reason: why it ended; None while it goes on.
        constrained: whether it is one of the answers that the row may give.
    """

    def __init__(
        self, room: int, answers: Answers | None, stop: StopStrings | None = None, *, renormalized: bool = False
    ) -> None:
        """`answers` None: free text, which `stop` may end. `renormalized` as in :class:`Sampled`."""
        self.room, self._stop, self._renormalized = room, stop, renormalized
        self.stop_reason: StopReason | None = None
        self._answers, self.constrained = answers, answers is not None
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._drawn: list[int] = []
        self._choices: list[list[int]] = []

    @property
    def token_ids(self) -> list[int]:
        """The ids so far."""
        return list(self._ids)

    @property
    def options(self) -> list[int]:
        """Ids that the next one is drawn among."""
        return sorted(self._answers or ())

    def draw(self, index: int, logprob: float, end_ids: frozenset[int]) -> list[int]:
        """Append an id that was drawn, and those after it that leave no choice; the ids that were appended."""
        if self.constrained:
            self._choices.append(self.options)
        self._append(index, logprob, drawn=1)
        if self._answers is not None:
            self._answers = self._answers[index]
            return [index, *self.follow()]
        if index in end_ids:
            self.stop_reason = StopReason.end_of_turn
        elif self._stop is not None and self._stop.in_last(self._ids):
            self.stop_reason = StopReason.stop_string
        elif len(self._ids) == self.room:
            self.stop_reason = StopReason.length
        return [index]

    def follow(self) -> list[int]:
        """Append the ids that leave no choice; these ids. Nothing in free text."""
        appended = []
        while self._answers is not None and len(self._answers) == 1:
            ((index, self._answers),) = self._answers.items()
            self._append(index, 0.0, drawn=0)
            appended.append(index)
        if self.constrained and not self._answers:
            self.stop_reason = StopReason.end_of_turn
        return appended

    def sampled(self) -> Sampled:
        """The finished turn."""
        assert self.stop_reason is not None, "asked for before it ended"
        drawn = self._drawn if self.constrained else None
        return Sampled(
            self._ids, self._logprobs, self.stop_reason, drawn, self._choices, renormalized=self._renormalized
        )

    def broken(self, error: str) -> Sampled:
        """The free turn as far as it came, with the reason code of what broke it."""
        return Sampled(self._ids, self._logprobs, StopReason.length, error=error, renormalized=self._renormalized)

    def _append(self, index: int, logprob: float, *, drawn: int) -> None:
        self._ids.append(index)
        self._logprobs.append(logprob)
        self._drawn.append(drawn)


class OwnPace:
    """Base of a session whose rows keep their own pace: it has `begin` and `advance`, and from here `sample`."""

    def begin(
        self, rows: Sequence[int], sampling: SamplingConfig, answers: Mapping[int, Answers] | None = None
    ) -> None:
        """Begin a turn in each row given."""
        raise NotImplementedError("a session begins turns")

    def advance(self) -> dict[int, Sampled]:
        """The turns that have ended since."""
        raise NotImplementedError("a session samples until a turn ends")

    def sample(
        self, rows: Sequence[int], sampling: SamplingConfig, answers: Mapping[int, Answers] | None = None
    ) -> dict[int, Sampled]:
        """One whole turn in each row given, in their order; where places are limited, they must fit into the batch."""
        self.begin(rows, sampling, answers)
        found: dict[int, Sampled] = {}
        while ended := self.advance():
            found |= ended
        return {row: found[row] for row in rows}
