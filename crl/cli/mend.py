"""`crl mend`: damaged files that follow from the rest of the record are made again and put back."""

from __future__ import annotations

from crl.cli.shared import RunArgument, console, shown
from crl.errors import RecordDamaged
from crl.run.find import find_run


def mend(run: RunArgument) -> None:
    """Rebuild damaged files from the rest of the record. The damaged ones are kept.

    Covers the bank, its texts and vectors, plans, credit, and everything derived. Exit code 4 if one is left.
    """
    from crl.audit.mend import mend as mend_record
    from crl.audit.verify import Severity, verify
    from crl.config import Runtime
    from crl.engine.services import services_here
    from crl.report.views import write_catalog
    from crl.rounds.recipe import recipe_in
    from crl.run.directory import RunDirectory
    from crl.run.evaluations import EVALUATIONS
    from crl.run.lease import Lease

    path = find_run(run)
    out = console()
    directory = RunDirectory.open(path)
    recipe = recipe_in(directory)
    # Lost vectors are embedded in this process.
    with services_here(directory) as services, Lease.acquire(path, seconds=Runtime().lease_seconds) as lease:
        done = mend_record(directory, recipe, services, token=lease.token)
    for name in done.mended:
        out.print(f"mended {name}", soft_wrap=True)
    if done.kept:
        out.print(f"the damaged files are kept in {shown(path / 'damaged')}", soft_wrap=True)
    found = [problem for problem in verify(path) if problem.severity is Severity.derived]
    played = [problem for problem in found if problem.file.startswith(f"{EVALUATIONS}/")]  # by a model: for good
    derived = [problem for problem in found if problem not in played]
    if derived:
        write_catalog(path)
        for problem in derived:
            out.print(f"rebuilt, or to be rebuilt on next use: {problem.file}", soft_wrap=True)
    for problem, error in done.left:
        out.print(
            f"{problem.file} cannot be made again: {error.found}\n  mend     {problem.redo or problem.mend}",
            soft_wrap=True,
        )
    for problem in played:
        out.print(f"{problem.found}: it cannot be made again\n  mend     {problem.mend}", soft_wrap=True)
    if left := len(done.left) + len(played):
        raise RecordDamaged(
            f"{left} file{'' if left == 1 else 's'} of {shown(path)} could not be made again",
            next_step="run the command named `mend`, the first one first; then crl resume",
        )
    if not done.mended and not derived:
        out.print(f"{shown(path)}: nothing to mend")
