"""The chain of manifests: does each stage match what later ones read, and which of two that disagree is the wrong one?
And what of the record is gone?

A manifest is vouched for by the stages that read it, and by the journal. Stages are looked at from the newest to the
oldest, so that a manifest that is wrong itself accuses nobody. Where two manifests disagree and nothing else speaks for
either, it cannot be known which one is wrong: the older stage is named.

A stage that was read and is gone is named by the chain. Of those that nobody read (the last stage, the last round, a
whole tail, and in the middle what no stage reads) only the journal knows: they were committed, were not set aside, and
are gone without a trace in the record. Resuming makes a lost stage again; where that needs a checkpoint that retention
deleted, `crl redo` takes back what wrote the checkpoint as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from crl.audit.problem import Problem, Record, Severity
from crl.audit.redo import pruned_sources
from crl.run.journal import moved_away
from crl.run.manifest import MANIFEST, Manifest, StageKey, key_of, parse_key

Mismatch = tuple[str, str]
"""What was expected and what was found."""
Readers = dict[StageKey, dict[StageKey, str]]
"""By stage: who read it, and the digest it had then."""


def stale(record: Record) -> dict[StageKey, Mismatch]:
    """Whole manifests that are not those of their place: of another stage, or of an earlier making."""
    found: dict[StageKey, Mismatch] = {}
    readers: Readers = {}
    for place, manifest in record.manifests.items():
        for key, digest in manifest.digested.inputs.items():
            readers.setdefault(parse_key(key), {})[place] = digest
        own = (manifest.digested.round, manifest.digested.stage)
        if own != place:
            found[place] = (f"the manifest of {key_of(*place)}", f"that of {key_of(*own)}")
    for place in reversed(record.manifests):
        if place in found:
            continue
        digest = record.manifests[place].digest
        said = _said(readers, place, found)
        wrong = {reader: read for reader, read in said.items() if read != digest}
        if not said and _unread_and_older(record, place):
            found[place] = (f"digest {record.committed[place].digest} (the journal)", f"digest {digest}")
        if not wrong:
            continue
        agreed = digest in said.values() or _journal(record, place) == digest
        if agreed and not any(_vouched(record, readers, reader, found) for reader in wrong):
            for reader, read in wrong.items():
                key = key_of(*place)
                found[reader] = (f"a manifest that read {key} with digest {digest}", f"one that read digest {read}")
        else:
            reader, read = next(iter(wrong.items()))
            found[place] = (f"digest {read} (read by {key_of(*reader)})", f"digest {digest}")
    return found


def chain_problems(record: Record) -> Iterator[Problem]:
    """Manifests of `record.stale`, and stages that were read and are gone."""
    for (number, stage), (expected, found) in record.stale.items():
        file = f"rounds/{key_of(number, stage)}/{MANIFEST}"
        yield Problem(file, stage, number, expected, found, record.redo(number, stage))
    reported: set[str] = set()
    for reader, manifest in record.manifests.items():
        if reader in record.stale:
            continue
        for key, digest in manifest.digested.inputs.items():
            place = parse_key(key)
            if key in reported or place in record.unreadable or place in record.manifests:
                continue
            reported.add(key)
            expected = f"digest {digest} (read by {key_of(*reader)})"
            yield record.damaged(f"rounds/{key}", *place, expected, "no such stage")


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


def _said(readers: Readers, place: StageKey, wrong: dict[StageKey, Mismatch]) -> dict[StageKey, str]:
    """What the stages that read this one, and are not wrong themselves, say about its digest."""
    return {reader: digest for reader, digest in readers.get(place, {}).items() if reader not in wrong}


def _vouched(record: Record, readers: Readers, place: StageKey, wrong: dict[StageKey, Mismatch]) -> bool:
    digest = record.manifests[place].digest
    return digest in _said(readers, place, wrong).values() or _journal(record, place) == digest


def _journal(record: Record, place: StageKey) -> str | None:
    commit = record.committed.get(place)
    return commit.digest if commit else None


def _unread_and_older(record: Record, place: StageKey) -> bool:
    """Whether the journal knows another digest of a stage that nobody read, and its manifest fits nothing around it.

    The journal alone proves nothing: where files and inputs fit the manifest, a note is all there is to say.
    """
    manifest = record.manifests[place]
    if _journal(record, place) in (None, manifest.digest):
        return False
    return not _fits(record, place, manifest)


def _fits(record: Record, place: StageKey, manifest: Manifest) -> bool:
    for key, digest in manifest.digested.inputs.items():
        current = record.manifests.get(parse_key(key))
        if current is not None and current.digest != digest:
            return False
    directory = record.run_path / "rounds" / key_of(*place)
    present = [(directory / name, file) for name, file in manifest.digested.files.items()]
    return all(file.is_at(path) for path, file in present if path.is_file())


def _lost(record: Record, file: str, places: list[StageKey], expected: str, found: str, gone: set[StageKey]) -> Problem:
    number, stage = places[0]
    redo = record.redo(number, stage)
    needs_models = [place for place in places if not record.from_rows(*place)]
    everything = [*record.manifests, *record.unreadable]
    again = not needs_models or not pruned_sources(record.run_path, {*needs_models, *gone}, everything)
    mend = record.resume() if again else redo
    return Problem(file, stage, number, expected, found, mend, Severity.lost, redo)
