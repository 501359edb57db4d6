"""What an extractor output earns when it is written: malformed ones and `return`, which no use will score.

Were they unscored the policy would drift to them, so how many there are of every kind is a metric.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from crl.config import ExtractorObjective
from crl.credit.buffer import Earned
from crl.records import Distillation, Metric

VERDICTS = ("malformed", "return", "add", "update", "mixed", "merge")
ALARM_SHARE = 0.5
"""Above this share of malformed or `return` outputs the extractor is drifting to outputs that are never
scored."""


def earned_when_written(
    outputs: Iterable[Distillation], free_means: Mapping[str, float], config: ExtractorObjective
) -> list[Earned]:
    """What malformed outputs and `return` earn at once and for all, in the order of `outputs`.

    `free_means` is :func:`crl.credit.uses.free_means` of the round's episodes, for `return_reward: free_mean`: a
    `return` whose group has no free member stays unscored.
    """
    found = []
    for row in outputs:
        setting = {"malformed": config.malformed_reward, "return": config.return_reward}.get(row.verdict, "none")
        reward = free_means.get(row.episode_id or "") if setting == "free_mean" else setting
        if reward is not None and reward != "none":
            found.append(Earned(row.generation_id, float(reward), row.verdict))
    return found


def output_health(distillations: Sequence[Distillation], *, round: int, stage: str = "credit") -> list[Metric]:
    """Share of every kind of extractor output of a round; malformed and return alarm above :data:`ALARM_SHARE`."""
    if not distillations:
        return []
    counts = Counter(row.verdict for row in distillations)
    rows = []
    for verdict in VERDICTS:
        share = counts[verdict] / len(distillations)
        alarm = None
        if verdict in ("malformed", "return") and share > ALARM_SHARE:
            alarm = f"{share:.0%} of the extractor's outputs are {verdict} (bound {ALARM_SHARE:.0%})"
        rows.append(Metric(round=round, stage=stage, name=f"share_{verdict}", value=share, alarm=alarm))
    return rows
