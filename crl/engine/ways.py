"""The ways in which a run computes its models: chosen once, before anything is sampled, and kept beside its record.

Another way may change the last digit of a number. So whatever process samples or updates for a run, now or when it goes
on, reads the same file, `ways.json`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from crl.config.models import Ways
from crl.errors import RecordDamaged
from crl.policies.verdicts import computed_here, kept_ways
from crl.run.directory import RunDirectory
from crl.run.files import canonical_json, write_once

WAYS = "ways.json"


def ways_of(run: RunDirectory) -> dict[str, Ways]:
    """The ways of a run's sets of weights, by their owners. Where it has none yet they are those of the verdicts that
    this machine keeps, and are written; a set without a verdict is left out, and tried whenever it is loaded.

    Raises RecordDamaged for a file that cannot be read.
    """
    path = Path(run.path) / WAYS
    if not path.is_file():
        found = kept_ways(run.method)
        if found.keys() != set(computed_here(run.method)):
            return found
        write_once(path, canonical_json({owner: _plain(ways) for owner, ways in found.items()}))
    try:
        return {owner: Ways(**ways) for owner, ways in json.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise RecordDamaged(
            f"{WAYS} cannot be read: {error}",
            expected="how each model of the run is sampled from and updated",
            where=str(path),
            next_step="Delete it: the ways are chosen again, as when a run begins.",
        ) from error


def _plain(ways: Ways) -> dict[str, Any]:
    return {name: value for name, value in asdict(ways).items() if value is not None}
