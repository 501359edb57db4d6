"""Verdicts of the actor on experiences (actor-critic, eq. 8): how a round's are spread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from crl.credit.written import ALARM_SHARE
from crl.records import Judgment, Metric

VERDICTS = ("accept", "refine", "reject", "malformed")


def judgment_metrics(judgments: Sequence[Judgment], *, round: int, stage: str = "credit") -> list[Metric]:
    """Share of every verdict of a round; malformed and rejected alarm above :data:`crl.credit.written.ALARM_SHARE`."""
    if not judgments:
        return []
    counts = Counter(row.verdict for row in judgments)
    consequences = {"malformed": "experiences are shown unjudged", "reject": "experiences hardly guide any more"}
    rows = []
    for verdict in VERDICTS:
        share = counts[verdict] / len(judgments)
        alarm = None
        if verdict in consequences and share > ALARM_SHARE:
            alarm = f"{share:.0%} of the verdicts are {verdict} (bound {ALARM_SHARE:.0%}): {consequences[verdict]}"
        rows.append(Metric(round=round, stage=stage, name=f"verdict_{verdict}", value=share, alarm=alarm))
    return rows
