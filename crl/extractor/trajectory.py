"""An episode as text for the extractor's prompt (goal, full trajectory, outcome, guiding experience).

A turn is shown as what was seen and what was done; after the last one comes what the last action did. An observation
equal to the one before is said to be so, and of one that is partly the same only the new rows are shown: `=3` stands
for three rows as before, which the first line explains where it occurs. Where the whole does not fit its budget, turns
are left out of the middle: how it began and how it ended say most. How many were shown in full is said, so that no cut
is silent.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from crl.records import QUESTION, SUMMARY, Episode, Turn

_UNCHANGED = "(unchanged)"
_SUMMARIZED = "(asked to sum up what it knows)"
_CUT = " … "
_SAME_ROWS = re.compile(r"(?m)^(Turn \d+: |End: )?=\d+$")
_EXPLAINED = "(=3: three rows as before)\n"


class Trajectory(NamedTuple):
    """A rendered trajectory."""

    text: str
    turns_shown: int
    """Turns that it shows in full."""


def render_trajectory(turns: Sequence[Turn], last: str | None, budget: int | None = None) -> Trajectory:
    """The turns, and what was seen after the `last` one (None: nobody knows), in at most `budget` characters (None: all
    of it).

    Turns are kept alternately from the end and the beginning as long as they fit beside a marker that says how many are
    missing; where not even the last turn fits, that turn is cut in its middle.
    """
    pieces = _pieces(turns, last)
    whole = _joined(pieces)
    if budget is None or len(whole) <= budget:
        return Trajectory(whole, len(turns))

    def with_gap(kept: int) -> str:
        tail = (kept + 1) // 2
        first = len(turns) - tail
        # What follows a gap must say what was seen, even if it was unchanged.
        ending = [*_pieces(turns[first : first + 1], None), *pieces[first + 1 :]]
        return _joined([*pieces[: kept - tail], _marker(len(turns) - kept), *ending])

    # The more turns, the longer: a turn adds more than the ones beside it can lose.
    kept = bisect_right(range(1, len(turns)), budget, key=lambda kept: len(with_gap(kept)))
    if kept > 0:
        return Trajectory(with_gap(kept), kept)
    ending = _pieces(turns[-1:], last)
    left_out = [_marker(len(turns) - 1)] if len(turns) > 1 else []
    return Trajectory(cut(_joined([*left_out, *ending]), budget), 0)


def outcome_text(episode: Episode) -> str:
    """`success`, or `failure` with why it ended."""
    if episode.success:
        return "success"
    return "failure" if episode.stop_reason == "failure" else f"failure ({episode.stop_reason.replace('_', ' ')})"


def _pieces(turns: Sequence[Turn], last: str | None) -> list[str]:
    """One text per turn, and one of what was seen after the last; the first is shown as it is."""
    pieces: list[str] = []
    before: str | None = None
    for turn in turns:
        if turn.action == SUMMARY:  # no step of the environment
            pieces.append(f"Turn {turn.turn + 1}: {_SUMMARIZED}\nAction: {turn.output.strip()}")
            continue
        pieces.append(f"Turn {turn.turn + 1}: {_seen(turn.observation, before)}\nAction: {_done(turn)}")
        before = turn.observation
    if last is not None and last.strip():
        pieces.append(f"End: {_seen(last, before)}")
    return pieces


def _seen(observation: str, before: str | None) -> str:
    """An observation beside the one before."""
    seen = observation.strip()
    if before is None:
        return seen
    if observation == before:
        return _UNCHANGED
    old, new = before.strip().split("\n"), seen.split("\n")
    rows: list[str] = []
    for kind, _, _, first, end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        rows += [f"={end - first}"] if kind == "equal" else new[first:end]
    shorter = "\n".join(rows)
    return shorter if len(shorter) < len(seen) else seen


def _joined(pieces: Sequence[str]) -> str:
    text = "\n".join(pieces)
    return _EXPLAINED + text if _SAME_ROWS.search(text) else text


def _done(turn: Turn) -> str:
    """What the actor wrote, and what was understood where that is not the same; the answer behind a question."""
    written = turn.output.strip()
    if turn.valid and turn.action == QUESTION:
        return f"{written} → {(turn.feedback or '').strip()}"
    if turn.valid:
        done = written if written == turn.action else f"{written} → {turn.action}"
        return f"{done} ({turn.feedback.strip()})" if turn.feedback else done
    return f"{written} → invalid" + (f" ({turn.feedback.strip()})" if turn.feedback else "")


def _marker(count: int) -> str:
    return f"[… {count} turn{'s' if count > 1 else ''} left out …]"


def cut(text: str, budget: int) -> str:
    """At most `budget` characters of a text: its beginning and its end."""
    if len(text) <= budget:
        return text
    room = budget - len(_CUT)
    if room < 2:
        return text[: max(budget, 0)]
    tail = room - room // 2
    return text[: room // 2] + _CUT + text[-tail:]
