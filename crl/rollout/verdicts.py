"""From the actor's text to a verdict on an experience (eq. 8), or to none: never an error, whatever the text holds.

The form is that of the extractor's outputs (`distill.format`). `lines` is one line and nothing else, blank ones aside:

    ACCEPT            REFINE: text            REJECT

`json` is an object with `verdict` and, to refine, `experience`; a fence around it is allowed. Either may follow
thoughts (`<think>…</think>`); what is in them is no verdict. An answer that its length limit cut off is malformed: its
text would be half a sentence.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from crl.text.answers import after_thoughts, json_part, text_flaw

Form = Literal["json", "lines"]

SCORES = {"accept": 1.0, "refine": 0.5, "reject": 0.0}
"""s_c of eq. 8 by verdict."""
_LINE = re.compile(r"(accept|reject)|refine[ \t]*:(.*)", re.IGNORECASE)


class VerdictReason(StrEnum):
    """What became of a verdict: `ok`, or the first thing that is wrong with it."""

    ok = "ok"
    truncated = "truncated"
    unfinished_thought = "unfinished_thought"
    """It ended, or was cut off, inside a thought."""
    no_verdict = "no_verdict"
    bad_json = "bad_json"
    empty_text = "empty_text"
    text_too_long = "text_too_long"
    bad_text = "bad_text"
    prompt_too_long = "prompt_too_long"
    """Nothing was sampled: the prompt does not fit the model's context."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict as written."""

    kind: str
    """accept, refine, reject or malformed."""
    reason: VerdictReason = VerdictReason.ok
    text: str | None = None
    """The rewritten experience; None unless it is refined."""

    @property
    def score(self) -> float | None:
        """s_c of eq. 8; None where the verdict is malformed."""
        return SCORES.get(self.kind)

    def experience(self, retrieved: str) -> str | None:
        """What guides the episode; None where the experience is rejected. A malformed verdict changes nothing."""
        return {"refine": self.text, "reject": None}.get(self.kind, retrieved)


def malformed(reason: VerdictReason) -> Verdict:
    """No verdict, for a reason."""
    return Verdict("malformed", reason)


def parse_verdict(
    text: str, form: Form, *, max_characters: int, truncated: bool = False, thinking: bool = False
) -> Verdict:
    """The verdict that a text gives; `truncated` where the length limit ended it, `thinking` where the prompt began a
    thought."""
    answer = after_thoughts(text, begun=thinking)
    if answer is None:
        return malformed(VerdictReason.unfinished_thought)
    if truncated:
        return malformed(VerdictReason.truncated)
    found = _from_json(answer) if form == "json" else _from_lines(answer)
    if found.text is None:
        return found
    flaw = text_flaw(found.text, max_characters)
    return found if flaw is None else malformed(VerdictReason(flaw))


def _from_lines(text: str) -> Verdict:
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    found = _LINE.fullmatch(lines[0]) if len(lines) == 1 else None
    if found is None:
        return malformed(VerdictReason.no_verdict)
    if found.group(1) is not None:
        return Verdict(found.group(1).lower())
    return Verdict("refine", text=found.group(2).strip())


def _from_json(text: str) -> Verdict:
    try:
        value: Any = json.loads(json_part(text))
    except (ValueError, RecursionError):  # ValueError: also numbers with more digits than Python converts
        return malformed(VerdictReason.bad_json)
    kind = value.get("verdict") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind.strip().lower() not in SCORES:
        return malformed(VerdictReason.no_verdict)
    kind = kind.strip().lower()
    if kind != "refine":
        return Verdict(kind)
    experience = value.get("experience")
    if experience is not None and not isinstance(experience, str):
        return malformed(VerdictReason.bad_text)
    return Verdict("refine", text=(experience or "").replace("\r\n", "\n").strip())
