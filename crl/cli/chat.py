"""`crl chat`: a trained agent plays in the terminal, or answers what you type, with the experience that guides it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from crl.cli.progress import INTERRUPTED
from crl.cli.shared import AgentArgument, command, console, print_listing, say
from crl.errors import BadInput
from crl.text.unicode import escaped

if TYPE_CHECKING:
    from crl.protocols import Policy, Start, Step
    from crl.serve.source import Guidance, TrainedAgent

_NEAR = 5
"""Candidates that are listed."""
_MARK = "« "
"""Before what the agent writes; what a person types has a > before it."""


def chat(
    agent: AgentArgument,
    text: Annotated[
        bool, typer.Option("--text", help="It answers what you type, or lines of standard input; no environment.")
    ] = False,
    family: Annotated[str | None, typer.Option(metavar="NAME", help="Task family; default the first.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Held-out seed of the game; default the first.")
    ] = None,
    games: Annotated[int, typer.Option(min=1, max=100_000, metavar="N", help="Games of consecutive seeds.")] = 1,
    no_bank: Annotated[bool, typer.Option("--no-bank", help="Show it no experience.")] = False,
    round: Annotated[
        int | None, typer.Option(min=0, help="The agent after this round; default the latest that was evaluated.")
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="The agent of the best evaluated round.")] = False,
) -> None:
    """Watch a trained agent play a game, word by word.

    Shows which experience guides it, and why. A game is one of the held-out
    evaluation. Nothing is kept.
    """
    from crl.serve.source import open_agent

    try:
        with open_agent(agent, round, best=best) as opened:
            name = opened.family(family or opened.families[0]).name
            if text and (seed is not None or games != 1):
                raise BadInput("--seed and --games choose games, and --text plays none", expected="--text without them")
            if text:
                _answer(opened, name, bank=not no_bank)
                return
            _play(opened, name, seed, games, bank=not no_bank)
            if not no_bank and opened.entries:
                options = {"--family": family, "--seed": seed, "--games": games if games > 1 else None,
                           "--round": round, "--best": best, "--no-bank": True}  # fmt: skip
                say(f"the same without the bank: {command('crl', 'chat', agent, options=options)}")
    except KeyboardInterrupt:
        say("")
        raise typer.Exit(INTERRUPTED) from None


def _play(agent: TrainedAgent, family: str, seed: int | None, games: int, *, bank: bool) -> None:
    from crl.serve.watched import watch

    found, held_out = agent.family(family), agent.family(family).evaluation_seeds
    first = held_out.start if seed is None else seed
    last = held_out.start + held_out.count - 1
    if first < held_out.start or first + games - 1 > last:
        raise BadInput(
            f"not all of these seeds of {family} are held out: {first} to {first + games - 1}"
            if games > 1
            else f"seed {first} of {family} is not held out",
            expected=f"seeds from {held_out.start} to {last}",
            where="--seed",
        )
    if found.environment.runs_programs:
        raise BadInput(
            f"games of {family} are programs that call the agent",
            expected="a family whose environment is stepped",
            next_step="type what it reads: --text; or let a program call it: crl serve",
        )
    environment, policy = agent.environment(family), _loaded(agent)
    for number in range(first, first + games):
        say(f"-- {family}, seed {number}, {'with' if bank else 'without'} the bank of round {agent.round} --")
        shown = _Shown()
        played = watch(agent, policy, environment, family, number, shown, bank=bank)
        say(f"-- {shown.outcome(len(played.turns), played.episode.stop_reason)} --\n")


def _answer(agent: TrainedAgent, family: str, *, bank: bool) -> None:
    """Conversations of typed lines, until there is no more input."""
    from crl.serve.watched import Typed, watch

    policy = _loaded(agent)
    say(f"{agent.name}, round {agent.round}, {family}: it reads each line that you type. Ctrl-D ends it.")
    while (line := _line()) is not None:
        played = watch(agent, policy, Typed(_line, line), family, 0, _Shown(steps=False), bank=bank)
        if played.episode.stop_reason != "context_limit":
            return
        say("-- no more of it fits into the context: a new conversation begins --")


def _line() -> str | None:
    from crl.cli.playing import typed_line

    try:
        return typed_line()
    except EOFError:
        return None


def _loaded(agent: TrainedAgent) -> Policy:
    """The model: loading it takes a while."""
    with console(stderr=True).status(f"loading {agent.weights.source}"):
        return agent.policy()


class _Shown:
    """Prints a game."""

    def __init__(self, *, steps: bool = True) -> None:
        self._steps, self._begun = steps, False
        self._last: Step | None = None

    def starts(self, start: Start, guidance: Guidance | None) -> None:
        """The task, and the experience that guides it."""
        if self._steps:
            say("\n".join(filter(None, (start.goal, "", start.observation))))
        if guidance is None:
            say("(no experience guides it)")
            return
        _say_guidance(guidance)

    def writes(self, text: str) -> None:
        """A piece of an answer."""
        sys.stdout.write(escaped(text if self._begun else f"{_MARK}{text}"))
        sys.stdout.flush()
        self._begun = True

    def answered(self) -> None:
        """The end of a line."""
        say("")
        self._begun = False

    def steps(self, step: Step) -> None:
        """What the environment says."""
        from crl.cli.playing import say_step

        self._last = step
        if self._steps:
            say_step(step)

    def outcome(self, turns: int, stop_reason: str) -> str:
        """How the game ended."""
        from crl.cli.playing import outcome_words

        if self._last is None or not self._last.done:  # the context was full, or sampling broke
            return f"ended after {turns} turns: {stop_reason.replace('_', ' ')}"
        return outcome_words(self._last, turns)


def _say_guidance(guidance: Guidance) -> None:
    from crl.report.terminal import Listing

    for entry in guidance.entries:
        won = "never used" if entry.mean_outcome is None else (
            f"used in {entry.uses} episode{'s' if entry.uses != 1 else ''}, {(1 + entry.mean_outcome) / 2:.0%} won"
        )  # fmt: skip
        say(f"experience {entry.entry_id} ({won}):\n  " + entry.text.replace("\n", "\n  "))
    listed = [row for row in guidance.candidates if row.chosen]
    listed += [row for row in guidance.candidates if not row.chosen][: max(0, _NEAR - len(listed))]
    rows = [
        (
            "shown" if row.chosen else "",
            f"{row.similarity:.3f}",
            f"{row.score:+.3f}",
            row.count,
            row.entry_id,
        )
        for row in listed
    ]
    columns = ("", "similarity", "score (eq. 6)", "chosen before", "entry")
    print_listing(Listing(columns, rows, right={"similarity", "score (eq. 6)", "chosen before"}))
