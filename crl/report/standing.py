"""Where a run stands, from its record and its journal: what is missing, what failed last, what runs now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crl.run.directory import RunDirectory


def unfinished(path: Path | RunDirectory, events: Sequence[dict[str, Any]], *, since: int = 0) -> str | None:
    """The first stage that is missing up to the last round that was asked for; None where nothing is.

    Rounds before `since` are taken to be complete.
    """
    from crl.rounds.recipe import recipe_in
    from crl.run.directory import RunDirectory

    run = path if isinstance(path, RunDirectory) else RunDirectory.open(path)
    recipe = recipe_in(run)
    asked = [int(event["last"]) for event in events if event.get("event") == "target"]
    last = max([since, *asked] if since else [*run.rounds(), *asked], default=0)
    for number in range(since, last + 1):
        for stage in recipe.stages_of(run.method, number):
            if not run.is_complete(number, stage.name):
                told = (
                    "no rounds were asked for yet" if never_asked(run.path, events) else f"of {last} rounds asked for"
                )
                return f"round {number}, {stage.name}, {told}"
    return None


def never_asked(path: Path, events: Sequence[dict[str, Any]]) -> bool:
    """Whether a run has no round, and nobody has asked it for one: what began it ended early."""
    from crl.run.directory import round_numbers

    asked = any(event.get("event") == "target" for event in events)
    return not asked and not round_numbers(path)


def last_failure(events: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The newest failed stage that was not committed afterward."""
    failed: dict[tuple[Any, Any], dict[str, Any]] = {}
    for event in events:
        place = (event.get("round"), event.get("stage"))
        if event.get("event") == "stage_failed":
            failed.pop(place, None)
            failed[place] = event
        elif event.get("event") == "stage_committed":
            failed.pop(place, None)
    return list(failed.values())[-1] if failed else None


def running_stages(events: Sequence[dict[str, Any]]) -> list[str]:
    """The stages that have started and not ended: one, or two where rounds overlap."""
    now: dict[tuple[Any, Any], str] = {}
    for event in events:
        kind, place = event.get("event"), (event.get("round"), event.get("stage"))
        if kind == "stage_started":
            now[place] = f"round {place[0]}, {place[1]}, attempt {event.get('attempt', 1)}"
        elif kind in ("stage_committed", "stage_failed"):
            now.pop(place, None)
        elif kind in ("attempt_started", "attempt_ended"):  # whoever was killed said nothing of the end
            now.clear()
    return list(now.values())
