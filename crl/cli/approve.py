"""`crl approve`: show what a round asks of the bank and decide about it, with or without a Prefect server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crl.cli.shared import RunArgument, say, show_diff, shown
from crl.errors import BadInput
from crl.run.find import find_run

if TYPE_CHECKING:
    from crl.rounds.approvals import PendingApproval
    from crl.rounds.stage import Recipe
    from crl.run.decisions import Decision
    from crl.run.directory import RunDirectory


def approve(
    run: RunArgument,
    round: Annotated[int | None, typer.Option(min=0, help="Round to decide about; default the waiting one.")] = None,
    reject: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Refuse this operation, approve the rest; repeatable.")
    ] = None,
    reject_all: Annotated[bool, typer.Option("--reject-all", help="Refuse all of the round's operations.")] = False,
    person: Annotated[str | None, typer.Option(help="Who decides; default your login name.")] = None,
    reason: Annotated[str | None, typer.Option(help="Why; it is kept in the record.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Only show what would change; decide nothing.")] = False,
) -> None:
    """Show a round's changes to the bank and decide about them. Approve all, some, or none.

    The first decision holds.
    """
    from crl.report.diff import proposed_diff
    from crl.rounds.approvals import check_choices, decide, login_name, refusals_of
    from crl.rounds.recipe import recipe_in
    from crl.run.directory import RunDirectory

    if reject and reject_all:
        raise BadInput("--reject and --reject-all are both given", expected="one of them")
    path = find_run(run)
    directory = RunDirectory.open(path)
    asked = _question(directory, recipe_in(directory), round)
    who = login_name() if person is None else person
    refused = list(asked.choices) if reject_all else check_choices(asked, reject or [])
    reasons = refusals_of(refused, who, reason)
    if asked.decision is not None:
        reasons = refusals_of(asked.refused(asked.decision), asked.decision.person, asked.decision.reason)
    show_diff(proposed_diff(path, asked.round, reasons))
    if show:
        said = f"decided: {asked.decision.in_words()}" if asked.decision else "nothing decided yet; to approve it:"
        say(said)
        say(f"  {_next(path, asked.decision)}")
        return
    decision = decide(asked, approve=not reject_all, reject=refused if reject else [], person=who, reason=reason)
    first = "" if asked.decision is None else "already decided: "
    say(f"round {asked.round}: {first}{decision.in_words()}")
    say(_next(path, decision))


def _question(run: RunDirectory, recipe: Recipe, round_number: int | None) -> PendingApproval:
    """What is to be decided, or was decided and has not been used yet. Raises BadInput where there is nothing."""
    from crl.rounds.approvals import questions
    from crl.run.decisions import load_decision

    stages = (*recipe.preparation, *recipe.stages)
    if not any(stage.waits_for is not None and stage.due(run.method, 1) for stage in stages):
        raise BadInput(
            f"{run.path} needs no approval: its bank is published without one",
            expected="an experiment with method.recipe.approve_bank: true",
        )
    found = questions(run, recipe, round_number)
    for each in found:
        if each.decision is None:
            return each
    if found:
        return found[-1]
    if round_number is None:
        nothing = f"nothing in {run.path} waits for a decision"
    else:
        nothing = f"round {round_number} of {run.path} does not wait for a decision"
        used = load_decision(run.path, round_number)
        if used is not None and run.is_complete(round_number, used.stage):
            nothing = f"round {round_number} was decided and its bank is published: {used.in_words()}"
    raise BadInput(
        nothing,
        expected="a round whose operations are complete and whose bank is not published",
        next_step=f"`crl status {shown(run.path)}` says what it waits for, "
        f'`crl sql {shown(run.path)} "FROM approvals"` what was decided',
    )


def _next(path: Path, decision: Decision | None) -> str:
    """What to type after a decision, or to make one."""
    from crl.run.lease import lease_state

    if decision is None:
        return f"crl approve {shown(path)}"
    owner = lease_state(path)
    if owner is not None and owner.live:
        return f"the run continues by itself: process {owner.owner.pid} on {owner.owner.host} waits for this"
    return f"next: crl resume {shown(path)}"
