"""Form: whether what the models write can be taken at all. Shares of valid and of cut-off turns, with their bounds.

An actor whose turns name no legal action, or end at the length limit, learns from noise; so does an extractor whose
outputs are cut. Both raise alarms in the round they happen in. Pure functions over plain columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from crl.protocols import StopReason
from crl.records import Episode
from crl.rounds.figures import Figures
from crl.text.unicode import REPLACEMENT

FEWEST_VALID = 0.95
"""Below this share of turns with a legal action there is an alarm."""
MOST_CUT = 0.05
"""Above this share of turns, or of extractor outputs, that the length limit ended, there is one."""


def turn_figures(episodes: Sequence[Episode], stop_reasons: Sequence[str]) -> Figures:
    """`turns_valid` and `turns_cut`: shares of the turns whose action was legal, and that the length limit ended.

    `stop_reasons` are those of the turns of these episodes. Nothing without turns. The turn in which an environment
    broke is no fault of the actor's and counts as valid.
    """
    turns = sum(episode.turns for episode in episodes)
    if not turns:
        return {}
    invalid = sum(episode.invalid_actions for episode in episodes)
    return {"turns_valid": 1 - invalid / turns, **_cut("turns_cut", stop_reasons)}


def output_figures(stop_reasons: Sequence[str]) -> Figures:
    """`outputs_cut`: share of the extractor's outputs that the length limit ended. A prompt that did not fit gave none
    and is left out: it is malformed anyway."""
    return _cut("outputs_cut", [each for each in stop_reasons if each != StopReason.context_limit])


def unreadable_figures(said: Iterable[str | None], turns: Iterable[tuple[str, str | None]] = ()) -> Figures:
    """`unreadable_characters`: characters U+FFFD in what environments said, and those of actions that the output
    (of `turns`, beside its action) does not have: the arguments of a tool call can spell what is no valid Unicode, and
    a byte-level model writes broken characters of its own. Nothing where all could be read."""
    found = sum(text.count(REPLACEMENT) for text in said if text)
    found += sum(
        max(0, action.count(REPLACEMENT) - output.count(REPLACEMENT)) for output, action in turns if action is not None
    )
    return {"unreadable_characters": float(found)} if found else {}


def form_alarms(figures: Mapping[str, float]) -> dict[str, str]:
    """What is wrong with the figures of a round, by figure; empty where all are inside their bounds."""
    alarms = {}
    if figures.get("turns_valid", 1.0) < FEWEST_VALID:
        alarms["turns_valid"] = f"fewer than {FEWEST_VALID:.0%} of the turns name a legal action"
    for name, told in (("turns_cut", "turns"), ("outputs_cut", "extractor's outputs")):
        if figures.get(name, 0.0) > MOST_CUT:
            alarms[name] = f"more than {MOST_CUT:.0%} of the {told} are cut off by the length limit"
    return alarms


def _cut(name: str, stop_reasons: Sequence[str]) -> Figures:
    if not stop_reasons:
        return {}
    return {name: sum(each == StopReason.length for each in stop_reasons) / len(stop_reasons)}
