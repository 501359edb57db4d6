"""Did a bank keep to its trials? An operation whose text failed, or was not tried, must have changed nothing."""

from __future__ import annotations

from crl.audit.replays import bank_problem
from crl.errors import RecordDamaged
from crl.records import TRIAL, BankEvent, Trial, rows_of
from crl.rounds.recipe import publishing_stage
from crl.rounds.stage import Recipe
from crl.run.directory import RunDirectory
from crl.run.verify import Problem


def trial_problems(run: RunDirectory, recipe: Recipe) -> list[Problem]:
    """Rounds that let something into the bank which its trial kept out. Files that cannot be read are `verify`'s."""
    found = []
    for number in run.rounds():
        place = publishing_stage(recipe, run.method, number)
        if place is None or place[0] != number or not run.is_complete(*place) or not run.is_complete(number, TRIAL):
            continue
        try:
            trials = rows_of(Trial, run.read(number, TRIAL, Trial))
            events = rows_of(BankEvent, run.read(*place, BankEvent))
        except RecordDamaged:
            continue
        kept_out = {row.operation_id: row.reason_code for row in trials if not row.admitted}
        for event in events:
            reason = kept_out.get(event.operation_id or "")
            if reason is not None and (event.kind, event.reason) != ("rejected", reason):
                said = f"{event.kind} {event.entry_id}" + (f" ({event.reason})" if event.reason else "")
                expected = f"operation {event.operation_id} rejected: {reason}, as its trial says"
                found.append(bank_problem(run, place, BankEvent, expected, f"{event.event_id}: {said}"))
                break
    return found
