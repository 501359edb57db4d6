"""Stages that were committed, were not set aside, and are gone without a trace in the record: nobody read them.

Only the journal knows of them: the last stage, the last round, a whole tail, and in the middle what no stage reads. A
stage that was read is named by the chain instead. Resuming makes a lost stage again; where that needs a checkpoint that
retention deleted, `crl redo` takes back what wrote the checkpoint as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from crl.run.journal import moved_away
from crl.run.manifest import Place, key_of
from crl.run.problem import Problem, Record, Severity
from crl.run.redo import pruned_sources


def lost_stages(record: Record) -> Iterator[Problem]:
    """One problem for each lost stage, or for a round of which all is lost."""
    present = {*record.manifests, *record.unreadable}
    read = {key for manifest in record.manifests.values() for key in manifest.digested.inputs}
    gone = {place: commit for place, commit in record.committed.items() if place not in present}
    if not gone:
        return
    gone = {place: gone[place] for place in gone.keys() - moved_away(record.run_path, gone)}
    rounds = {number for number, _ in present}
    order = list(record.committed)
    listed = sorted(gone, key=lambda place: (place[0], order.index(place)))
    for number, group in groupby(listed, key=lambda place: place[0]):
        places = list(group)
        unread = [place for place in places if key_of(*place) not in read]
        if not unread:
            continue
        if number not in rounds and unread == places:
            expected = f"stages {', '.join(stage for _, stage in places)}, committed as the journal says"
            yield _lost(record, f"rounds/{number:04d}", places, expected, "no such round", set(gone))
            continue
        for place in unread:
            expected = f"digest {gone[place].digest or 'unknown'} (committed, as the journal says)"
            yield _lost(record, f"rounds/{key_of(*place)}", [place], expected, "no such stage", set(gone))


def _lost(record: Record, file: str, places: list[Place], expected: str, found: str, gone: set[Place]) -> Problem:
    number, stage = places[0]
    redo = record.redo(number, stage)
    needs_models = [place for place in places if not record.from_rows(*place)]
    everything = [*record.manifests, *record.unreadable]
    again = not needs_models or not pruned_sources(record.run_path, {*needs_models, *gone}, everything)
    mend = record.resume() if again else redo
    return Problem(file, stage, number, expected, found, mend, Severity.lost, redo)
