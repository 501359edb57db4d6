"""The chain of manifests: does each stage match what later ones read, and which of two that disagree is the wrong one?

A manifest is vouched for by the stages that read it, and by the journal. Stages are looked at from the newest to the
oldest, so that a manifest that is wrong itself accuses nobody. Where two manifests disagree and nothing else speaks for
either, it cannot be known which one is wrong: the older stage is named.
"""

from __future__ import annotations

from collections.abc import Iterator

from crl.run.files import sha256_file
from crl.run.manifest import MANIFEST, Manifest, key_of, parse_key
from crl.run.problem import Problem, Record

Place = tuple[int, str]
Found = tuple[str, str]
"""What was expected and what was found."""
Readers = dict[Place, dict[Place, str]]
"""By stage: who read it, and the digest it had then."""


def stale(record: Record) -> dict[Place, Found]:
    """Whole manifests that are not those of their place: of another stage, or of an earlier making."""
    found: dict[Place, Found] = {}
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


def _said(readers: Readers, place: Place, wrong: dict[Place, Found]) -> dict[Place, str]:
    """What the stages that read this one, and are not wrong themselves, say about its digest."""
    return {reader: digest for reader, digest in readers.get(place, {}).items() if reader not in wrong}


def _vouched(record: Record, readers: Readers, place: Place, wrong: dict[Place, Found]) -> bool:
    digest = record.manifests[place].digest
    return digest in _said(readers, place, wrong).values() or _journal(record, place) == digest


def _journal(record: Record, place: Place) -> str | None:
    commit = record.committed.get(place)
    return commit.digest if commit else None


def _unread_and_older(record: Record, place: Place) -> bool:
    """Whether the journal knows another digest of a stage that nobody read, and its manifest fits nothing around it.

    The journal alone proves nothing: where files and inputs fit the manifest, a note is all there is to say.
    """
    manifest = record.manifests[place]
    if _journal(record, place) in (None, manifest.digest):
        return False
    return not _fits(record, place, manifest)


def _fits(record: Record, place: Place, manifest: Manifest) -> bool:
    for key, digest in manifest.digested.inputs.items():
        current = record.manifests.get(parse_key(key))
        if current is not None and current.digest != digest:
            return False
    directory = record.run_path / "rounds" / key_of(*place)
    present = [(directory / name, file.sha256) for name, file in manifest.digested.files.items()]
    return all(sha256_file(path) == sha256 for path, sha256 in present if path.is_file())
