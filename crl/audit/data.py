"""Is the data that a run plays with, a person's own files outside of the run, what it was when the run was made?

Every byte is read. Whoever resumes only looks whether a file has changed since it was read last.
"""

from __future__ import annotations

from collections.abc import Iterator

from crl.audit.problem import Problem, Severity
from crl.config import Method
from crl.errors import CrlError
from crl.run.data_files import data_faults


def has_data(method: Method) -> bool:
    """Whether a run keeps digests of data."""
    return any(family.data_digests for family in method.families)


def data_problems(method: Method) -> Iterator[Problem]:
    """A problem for each file or folder of data that is gone, or has another content than when the run was made."""
    seen: set[str] = set()
    for family in method.families:
        for world in family.worlds.values() if family.data_digests else ():
            try:
                faults = [(str(each.path), f"SHA-256 {each.expected}", each.found) for each in data_faults(world)]
            except CrlError as error:
                faults = [(f"the data of family {family.name}", error.expected or "as it was", error.found)]
            for file, expected, found in faults:
                if file not in seen:
                    seen.add(file)
                    mend = "put it back as it was: nothing in the run itself is damaged"
                    yield Problem(file, None, None, expected, found, mend, Severity.data)
