"""Collapse: kinds of a run that has stopped learning, each named once its sign was present for some rounds in a row.

Four traps: outputs that are never scored win, all rewards of a batch are equal, an actor frozen
or dead. The signs so far are carried by the metrics of the round before, so a resumed run knows it too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from crl.records import Metric
from crl.rounds.figures import Figures
from crl.rounds.form import form_alarms

ROUNDS = 5
"""Rounds in a row with the sign of a kind until it is named."""
WITHOUT_NOTE = 0.8
"""Above this share of malformed and `return` outputs the extractor writes next to nothing that is ever scored."""
ONE_TEXT = 0.8
"""Above this share one text, not known to be right, makes up most notes."""
BEST_SUCCESS = "best_success"


@dataclass(frozen=True)
class Kind:
    """One way to collapse."""

    name: str
    told: str
    role: str | None
    """Role that must be trained in the round for the sign to mean anything; None: any."""
    needs: tuple[str, ...]
    """Figures it looks at: a round without them (no full batch, no note) says nothing, for or against."""
    sign: Callable[[Mapping[str, float]], bool]


KINDS = (
    Kind(
        "without_notes",
        f"the extractor writes no notes: more than {WITHOUT_NOTE:.0%} of its outputs are malformed or return",
        None,
        ("share_without_note",),
        lambda of: of["share_without_note"] > WITHOUT_NOTE,
    ),
    Kind(
        "one_text",
        f"one text is more than {ONE_TEXT:.0%} of the new notes or reflections",
        None,
        ("notes_one_text",),
        lambda of: of["notes_one_text"] > ONE_TEXT,
    ),
    Kind(
        "equal_rewards",
        "no update of the extractor is possible: all rewards of its full batches are equal",
        "extractor",
        ("extractor_without_gradient",),
        lambda of: of["extractor_without_gradient"] == 1.0,
    ),
    Kind(
        "without_success",
        "no episode succeeds any more",
        "actor",
        ("success", BEST_SUCCESS),
        lambda of: of["success"] == 0.0 and of[BEST_SUCCESS] > 0.0,
    ),
    Kind(
        "without_variance",
        "no update of the actor is possible: all rewards of each baseline are equal, and not all episodes succeed",
        "actor",
        ("success", "actor_groups_equal"),
        # A step all the same is that of another loss, such as self-distillation's.
        lambda of: of["actor_groups_equal"] == 1.0 and of["success"] < 1.0 and not of.get("actor_stepped"),
    ),
)


def counters() -> set[str]:
    """Names of the figures that are carried from round to round to count the signs of each kind."""
    return {f"{kind.name}_{what}" for kind in KINDS for what in ("rounds", "since")}


def collapse_figures(
    figures: Mapping[str, float], previous: Mapping[str, float], trained: Set[str], *, round: int
) -> tuple[Figures, list[str]]:
    """(figures to carry on, what to say about every kind that is present) after a round.

    `figures` are those of the round, `previous` all of this stage's in the round before (empty before the first),
    `trained` the roles this round trains. Of each kind with a sign `<kind>_rounds` counts the rounds in a row and
    `<kind>_since` is the first of them.
    """
    carried: Figures = {}
    if "success" in figures or BEST_SUCCESS in previous:
        carried[BEST_SUCCESS] = max(figures.get("success", 0.0), previous.get(BEST_SUCCESS, 0.0))
    seen = {**figures, **carried}
    told = []
    for kind in KINDS:
        rounds, since = (previous.get(f"{kind.name}_{what}", 0.0) for what in ("rounds", "since"))
        if (kind.role is None or kind.role in trained) and all(name in seen for name in kind.needs):
            present = kind.sign(seen)
            since = (since if rounds else float(round)) if present else 0.0
            rounds = rounds + 1 if present else 0.0
        if not rounds:
            continue
        carried |= {f"{kind.name}_rounds": rounds, f"{kind.name}_since": since}
        if rounds >= ROUNDS:
            told.append(f"{kind.told}, since round {since:.0f}")
    return carried, told


def health_metrics(
    figures: Mapping[str, float],
    previous: Mapping[str, float],
    trained: Set[str],
    *,
    round: int,
    stage: str = "health",
    alarms: Mapping[str, str] | None = None,
) -> list[Metric]:
    """The rows of a round's stage: its figures with the alarms of form (`form.py`), what is carried on, and
    `collapsed`: how many kinds are present, named in its alarm. `alarms` are those of other figures, by name."""
    carried, told = collapse_figures(figures, previous, trained, round=round)
    alarmed = {**form_alarms(figures), **(alarms or {})}
    if told:
        alarmed["collapsed"] = f"this run has collapsed: {'; '.join(told)}"
    values = {**figures, **carried, "collapsed": float(len(told))}
    return [
        Metric(round=round, stage=stage, name=name, value=value, alarm=alarmed.get(name))
        for name, value in values.items()
    ]
