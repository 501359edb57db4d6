"""Decisions that a stage waits for, made outside of it: whether one is missing, making one, and the stage `approve`.

A stage says with `waits_for` that a person decides before it runs. What it waits for is known from the record alone,
so the command line, a flow and the driver all find the same; none of them needs a lease or an engine.

Stage `approve`, due with `approve_bank` only, writes a decision about what the round asks of the bank as rows of the
record. The decision is made with `crl approve`, or in the Prefect UI, and is in `decisions/`; the stage checks that it
speaks of these very operations. When it was made is in the manifest: rows hold no clock times.
"""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from crl.config import Method
from crl.errors import ApprovalPending, BadInput
from crl.paths import quoted
from crl.records import Approval
from crl.rounds.context import StageContext
from crl.rounds.proposal import changing, operations_of, proposal_of
from crl.rounds.recipe import recipe_in, recorded_rows, stages_behind
from crl.rounds.stage import Read, Recipe, Refused, Stage, always, nothing_refused
from crl.run.decisions import Decision, load_decision, now, shown_digest, write_decision
from crl.run.directory import RunDirectory
from crl.text.unicode import valid_text

APPROVED, PARTLY, REJECTED = "approved", "partly", "rejected"
DECISION = "decision"
"""Where the manifest's provenance holds the time of the decision and the check of its file."""


@dataclass(frozen=True, slots=True)
class PendingApproval:
    """What a person is asked about a round, and what they decided if they did."""

    run_path: Path
    round: int
    stage: str
    shown: str
    """Digest of what is to be decided."""
    choices: tuple[str, ...]
    """Ids of what may be refused, in order."""
    decision: Decision | None = None
    """The decision about these very rows."""
    outdated: Decision | None = None
    """A decision about other rows: stages were redone since."""

    def in_words(self) -> str:
        """What is awaited, as a sentence."""
        count = len(self.choices)
        asked = f"{count} operation{'' if count == 1 else 's'} to decide about" if count else "nothing would change"
        text = f"round {self.round} waits for a person before stage {self.stage}: {asked}"
        if self.outdated is not None:
            text += f"\n(an earlier decision concerns other operations and is not used: {self.outdated.in_words()})"
        return text

    def refused(self, decision: Decision) -> list[str]:
        """Ids that a decision refuses, in order."""
        return [each for each in self.choices if not decision.approve or each in decision.reject]

    def command(self) -> str:
        """What to type to decide."""
        return f"crl approve {quoted(self.run_path)}"

    def error(self) -> ApprovalPending:
        """The error of a stage that cannot run yet."""
        return ApprovalPending(
            self.in_words(),
            where=str(self.run_path),
            next_step=f"`{self.command()} --show` shows it, `{self.command()}` approves it (--reject ID, --reject-all);"
            f" then `crl resume {quoted(self.run_path)}`",
        )


def question(run: RunDirectory, recipe: Recipe, round_number: int, stage_name: str) -> PendingApproval | None:
    """What a person is asked before a stage, decided or not; None where nothing is.

    Nothing is asked about a stage that is complete, nor before the stages it reads are. Raises RecordDamaged where the
    decision that is there cannot be read.
    """
    stage = recipe.stage(run.method, round_number, stage_name)
    if stage.waits_for is None or run.is_complete(round_number, stage_name):
        return None
    behind = stages_behind(run, recipe, round_number, stage)
    if behind is None:
        return None
    shown, found = shown_digest(behind), load_decision(run.path, round_number)
    choices = stage.waits_for(run.method, round_number, recorded_rows(run, recipe, round_number, stage))
    fits = found is not None and found.shown == shown
    return PendingApproval(
        run.path,
        round_number,
        stage_name,
        shown,
        tuple(choices),
        decision=found if fits else None,
        outdated=None if fits else found,
    )


def pending_approval(run: RunDirectory, recipe: Recipe, round_number: int, stage_name: str) -> PendingApproval | None:
    """What a person has to decide before a stage can run; None where nothing is awaited. Raises as :func:`question`."""
    asked = question(run, recipe, round_number, stage_name)
    return None if asked is None or asked.decision is not None else asked


def questions(run: RunDirectory, recipe: Recipe, round_number: int | None = None) -> list[PendingApproval]:
    """Everything a person is asked about a run, or about one of its rounds, decided or not, in order."""
    newest = max(run.rounds(), default=0)
    rounds = [round_number] if round_number is not None else range(newest + 1)
    asked = [
        question(run, recipe, number, stage.name) for number in rounds for stage in recipe.stages_of(run.method, number)
    ]
    return [each for each in asked if each is not None]


def awaited(run_path: Path) -> PendingApproval | None:
    """The decision that a run waits for; None where it waits for none."""
    run = RunDirectory.open(run_path)
    asked = questions(run, recipe_in(run))
    return next((each for each in asked if each.decision is None), None)


def check_choices(asked: PendingApproval, reject: Iterable[str]) -> list[str]:
    """The ids to refuse, each once and in the order shown. Raises BadInput for others than may be refused."""
    named = list(reject)
    unknown = [each for each in named if each not in asked.choices]
    if unknown:
        raise BadInput(
            f"round {asked.round} does not ask for {', '.join(unknown)}",
            expected=f"some of {_some(asked.choices)}" if asked.choices else "no id: nothing would change",
            next_step=f"`{asked.command()} --show` lists what the round asks for",
        )
    return [each for each in asked.choices if each in named]


def decide(
    asked: PendingApproval, *, approve: bool, reject: Iterable[str] = (), person: str, reason: str | None = None
) -> Decision:
    """Write a decision; returns the one that holds: an equal one may have been made before.

    Raises BadInput for ids that are not to be decided about or a person without a name, DecisionMade where somebody
    decided otherwise.
    """
    refused = check_choices(asked, reject)
    if not person.strip():
        raise BadInput("a decision needs a person", expected="the name of whoever decides")
    return write_decision(
        asked.run_path,
        Decision(
            round=asked.round,
            stage=asked.stage,
            shown=asked.shown,
            approve=approve,
            reject=tuple(refused) if approve else (),
            person=person.strip(),
            reason=(reason or "").strip() or None,
            decided_at=now(),
        ),
    )


def _some(names: tuple[str, ...], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def login_name() -> str:
    """Who sits at this machine, as the system knows them."""
    try:
        return valid_text(getpass.getuser())  # it may come from a variable of the environment
    except (KeyError, OSError):  # a container's user without an entry
        return "unknown"


def approve_stage(
    proposal: tuple[Read, ...], refused: Refused = nothing_refused, due: Callable[[Method, int], bool] = always
) -> Stage:
    """The stage. `proposal` are the reads of what the round asks for, `refused` gives what the recipe keeps out of it;
    it is due in rounds that change the bank (`due`)."""
    return Stage(
        name="approve",
        run=approve,
        reads=proposal,
        writes=(Approval,),
        due=lambda method, number: method.recipe.bank_use().approved and due(method, number),
        waits_for=lambda method, number, rows: changing(operations_of(rows), refused(rows)),
    )


def approve(ctx: StageContext) -> None:
    """Write the decision down. Raises ApprovalPending where none fits what the round asks for."""
    shown = proposal_of(ctx.recipe, ctx.method, ctx.round, ctx.rows, ctx.bank, ctx.run_path).changing
    decision = load_decision(ctx.run_path, ctx.round)
    if decision is None or decision.shown != shown_digest(ctx.digests()):
        raise ApprovalPending(
            "nobody has decided about the bank of this round yet"
            if decision is None
            else f"the recorded decision concerns other operations ({decision.in_words()})",
            where=f"round {ctx.round}, stage {ctx.stage.name}",
            next_step=f"crl approve {quoted(ctx.run_path)} --round {ctx.round}",
        )
    ctx.provenance[DECISION] = {"decided_at": decision.decided_at.isoformat(), "check": decision.check}
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
