"""What a report shows of the rounds of `reviewed`, beside what it shows of every run."""

from __future__ import annotations

from collections.abc import Sequence

from crl.report.sections import Rows, Section
from crl.report.summary import RoundSummary


def review_rows(summaries: Sequence[RoundSummary]) -> Rows:
    """One row per round that wrote reviews."""
    return [
        {"round": each.label, "games": str(each.free.episodes), "seconds of reviewing": f"{each.seconds['review']:.1f}"}
        for each in summaries
        if "review" in each.seconds
    ]


SECTION = Section(tables={"reviews": review_rows})
