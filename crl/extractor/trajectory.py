"""An episode as text for the extractor's prompt (section 3: goal, full trajectory, outcome, guiding experience).

A turn is shown as what was seen and what was done; an observation equal to the one before is said to be so. Where the
whole does not fit its budget, turns are left out of the middle: how it began and how it ended say most.
"""

from __future__ import annotations

from collections.abc import Sequence

from crl.records import QUESTION, Episode, Turn

_UNCHANGED = "(unchanged)"
_CUT = " … "


def render_trajectory(turns: Sequence[Turn], budget: int | None = None) -> str:
    """The turns as text of at most `budget` characters (None: all of it).

    Turns are kept alternately from the end and the beginning as long as they fit beside a marker that says how many are
    missing; where not even the last turn fits, that turn is cut in its middle.
    """
    pieces = _pieces(turns)
    whole = "\n".join(pieces)
    if budget is None or len(whole) <= budget:
        return whole
    for kept in range(len(pieces) - 1, 0, -1):
        tail = (kept + 1) // 2
        head = kept - tail
        # What follows a gap must say what was seen, even if it was unchanged.
        last = _pieces(turns[len(turns) - tail :])
        shown = "\n".join([*pieces[:head], _marker(len(pieces) - kept), *last])
        if len(shown) <= budget:
            return shown
    last_turn = _pieces(turns[-1:])[0]
    return _cut(last_turn if len(pieces) == 1 else f"{_marker(len(pieces) - 1)}\n{last_turn}", budget)


def outcome_text(episode: Episode) -> str:
    """`success`, or `failure` with why it ended."""
    if episode.success:
        return "success"
    return "failure" if episode.stop_reason == "failure" else f"failure ({episode.stop_reason.replace('_', ' ')})"


def _pieces(turns: Sequence[Turn]) -> list[str]:
    pieces, before = [], None
    for turn in turns:
        seen = _UNCHANGED if turn.observation == before else turn.observation.strip()
        before = turn.observation
        pieces.append(f"Turn {turn.turn + 1}: {seen}\nAction: {_done(turn)}")
    return pieces


def _done(turn: Turn) -> str:
    """What the actor wrote, and what was understood where that is not the same; the answer behind a question."""
    written = turn.output.strip()
    if turn.valid and turn.action == QUESTION:
        return f"{written} → {(turn.feedback or '').strip()}"
    if turn.valid:
        return written if written == turn.action else f"{written} → {turn.action}"
    return f"{written} → invalid" + (f" ({turn.feedback.strip()})" if turn.feedback else "")


def _marker(count: int) -> str:
    return f"[… {count} turn{'s' if count > 1 else ''} left out …]"


def _cut(text: str, budget: int) -> str:
    """At most `budget` characters: the beginning and the end of the text."""
    if len(text) <= budget:
        return text
    room = budget - len(_CUT)
    if room < 2:
        return text[: max(budget, 0)]
    tail = room - room // 2
    return text[: room // 2] + _CUT + text[-tail:]
