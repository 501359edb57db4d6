"""Stage `approve`: a person's decision about what the round asks of the bank, as rows of the record.

Due with `approve_bank` only. The decision is made outside (`crl approve`, or the Prefect UI) and is in `decisions/`;
this stage checks that it speaks of these very operations and writes it down. When it was made is in the manifest:
rows hold no clock times.
"""

from __future__ import annotations

from collections.abc import Iterable

from crl.config import Method
from crl.errors import ApprovalPending, BadInput
from crl.paths import quoted
from crl.records import Approval
from crl.rounds.context import StageContext
from crl.rounds.proposal import changing, operations_of, proposal_of, refused_by_trial
from crl.rounds.stage import RowsOf
from crl.run.decisions import Decision, load_decision, shown_digest

APPROVED, PARTLY, REJECTED = "approved", "partly", "rejected"
DECISION_NOTE = "decision"
"""Where the manifest's provenance holds the time of the decision and the check of its file."""


def due(method: Method, round_number: int) -> bool:
    """Where a person approves the bank."""
    return method.recipe.bank_use().approved


def choices(method: Method, round_number: int, rows: RowsOf) -> list[str]:
    """Ids of the operations that a person may refuse: those that ask for a change of the bank."""
    failed = refused_by_trial(method, rows)
    return [name for name in changing(operations_of(rows)) if name not in failed]


def approve(ctx: StageContext) -> None:
    """Write the decision down. Raises ApprovalPending where none fits what the round asks for."""
    shown = proposal_of(ctx.method, ctx.round, ctx.rows, ctx.bank).changing
    decision = load_decision(ctx.run_path, ctx.round)
    if decision is None or decision.shown != shown_digest(ctx.digests()):
        raise ApprovalPending(
            "nobody has decided about the bank of this round yet"
            if decision is None
            else f"the recorded decision concerns other operations ({decision.told()})",
            where=f"round {ctx.round}, stage {ctx.stage.name}",
            next_step=f"crl approve {quoted(ctx.run_path)} --round {ctx.round}",
        )
    ctx.notes[DECISION_NOTE] = {"decided_at": decision.decided_at.isoformat(), "check": decision.check}
    ctx.write(Approval, [approval_of(decision, shown)])
    ctx.progress(len(shown), len(shown))


def approval_of(decision: Decision, shown: list[str]) -> Approval:
    """A decision about these operations as a row. Raises BadInput where it names others."""
    unknown = sorted(set(decision.reject) - set(shown))
    if unknown:
        raise BadInput(
            f"the decision about round {decision.round} rejects {', '.join(unknown)}, which it does not hold",
            expected=f"some of {', '.join(shown)}" if shown else "no id: the round asks for no change",
        )
    refused = [each for each in shown if not decision.approve or each in decision.reject]
    everything = len(refused) == len(shown) and (bool(shown) or not decision.approve)
    return Approval(
        round=decision.round,
        decision=REJECTED if everything else PARTLY if refused else APPROVED,
        person=decision.person,
        reason=decision.reason,
        operations=len(shown),
        rejected_operations=refused,
    )


def refusals(approvals: Iterable[Approval]) -> dict[str, str]:
    """Why operations change nothing, by id, as the bank's events record it."""
    return {
        operation: reason
        for row in approvals
        for operation, reason in refusals_of(row.rejected_operations, row.person, row.reason).items()
    }


def refusals_of(operations: Iterable[str], person: str, reason: str | None) -> dict[str, str]:
    """The reason that each of these operations gets when a person refuses it."""
    return dict.fromkeys(operations, f"rejected by {person}" + (f": {reason}" if reason else ""))
