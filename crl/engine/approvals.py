"""Decisions that a stage waits for: whether one is missing, and making one. Needs no lease and no engine.

A stage says with `waits_for` that a person decides before it runs. What it waits for is known from the record alone,
so the command line, a flow and the driver all find the same.
"""

from __future__ import annotations

import getpass
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from crl.errors import ApprovalPending, BadInput
from crl.recipes.reading import recorded_rows, stages_behind
from crl.recipes.stage import Recipe
from crl.run.decisions import Decision, load_decision, now, shown_digest, write_decision
from crl.run.directory import RunDirectory


@dataclass(frozen=True, slots=True)
class PendingApproval:
    """A decision that is awaited."""

    run_path: Path
    round: int
    stage: str
    shown: str
    """Digest of what is to be decided."""
    choices: tuple[str, ...]
    """Ids of what may be refused, in order."""
    outdated: Decision | None = None
    """A decision that is there and speaks of other rows: stages were redone since."""

    def told(self) -> str:
        """What is awaited, as a sentence."""
        count = len(self.choices)
        asked = f"{count} operation{'' if count == 1 else 's'} to decide about" if count else "nothing would change"
        text = f"round {self.round} waits for a person before stage {self.stage}: {asked}"
        if self.outdated is not None:
            text += f"\n(an earlier decision speaks of other operations and is not used: {self.outdated.told()})"
        return text

    def command(self) -> str:
        """What to type to decide."""
        return f"crl approve {self.run_path}"

    def error(self) -> ApprovalPending:
        """The error of a stage that cannot run yet."""
        return ApprovalPending(
            self.told(),
            where=str(self.run_path),
            next_step=f"`{self.command()} --show` shows it, `{self.command()}` approves it (--reject ID, --reject-all);"
            f" then `crl resume {self.run_path}`",
        )


def pending_approval(run: RunDirectory, recipe: Recipe, round_number: int, stage_name: str) -> PendingApproval | None:
    """What a person has to decide before a stage can run; None where nothing is awaited.

    Nothing is awaited by a stage that is complete or decided about, nor before the stages it reads are complete. Raises
    RecordDamaged where the decision that is there cannot be read.
    """
    stage = recipe.stage(run.method, round_number, stage_name)
    if stage.waits_for is None or run.is_complete(round_number, stage_name):
        return None
    behind = stages_behind(run, recipe, round_number, stage)
    if behind is None:
        return None
    shown, decision = shown_digest(behind), load_decision(run.path, round_number)
    if decision is not None and decision.shown == shown:
        return None
    choices = stage.waits_for(run.method, round_number, recorded_rows(run, recipe, round_number))
    return PendingApproval(run.path, round_number, stage_name, shown, tuple(choices), decision)


def first_pending(run: RunDirectory, recipe: Recipe, round_number: int | None = None) -> PendingApproval | None:
    """The decision that a run waits for, in one round or in whichever; None where there is none."""
    rounds = [*run.rounds(), max(run.rounds(), default=-1) + 1] if round_number is None else [round_number]
    for number in rounds:
        for stage in recipe.stages_of(run.method, number):
            pending = pending_approval(run, recipe, number, stage.name)
            if pending is not None:
                return pending
    return None


def decide(
    pending: PendingApproval, *, approve: bool, reject: Iterable[str] = (), person: str, reason: str | None = None
) -> Decision:
    """Write a decision; returns the one that holds.

    Raises BadInput for ids that are not to be decided about or a person without a name, DecisionMade where somebody
    decided otherwise in the meantime.
    """
    refused = list(dict.fromkeys(reject))
    unknown = [each for each in refused if each not in pending.choices]
    if unknown:
        raise BadInput(
            f"round {pending.round} does not ask for {', '.join(unknown)}",
            expected=f"some of {', '.join(pending.choices)}" if pending.choices else "no id: nothing would change",
            next_step=f"`{pending.command()} --show` lists what the round asks for",
        )
    if not person.strip():
        raise BadInput("a decision needs a person", expected="the name of whoever decides")
    return write_decision(
        pending.run_path,
        Decision(
            round=pending.round,
            stage=pending.stage,
            shown=pending.shown,
            approve=approve,
            # In the order shown: how they were typed must not show in the record.
            reject=tuple(each for each in pending.choices if each in refused) if approve else (),
            person=person.strip(),
            reason=(reason or "").strip() or None,
            decided_at=now(),
        ),
    )


def login_name() -> str:
    """Who sits at this machine, as the system knows them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without an entry
        return "unknown"
