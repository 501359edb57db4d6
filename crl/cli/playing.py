"""A person plays an environment in the terminal, or through lines of standard input, and the games may be kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from crl.cli.progress import INTERRUPTED
from crl.cli.shared import say
from crl.errors import BadInput, CrlError
from crl.paths import possible_path, short
from crl.protocols import Actions, Start, Step
from crl.rollout.actions import parse_action
from crl.rollout.prompts import actor_messages, following_text
from crl.text.calls import actions_text

if TYPE_CHECKING:
    from crl.config import FamilyConfig, PromptConfig


def play(family: FamilyConfig, *, first_seed: int, prompts: str | None, record: Path | None) -> None:
    """Play games of consecutive seeds until there is no more input. Raises BadInput, and Exit after Ctrl-C."""
    from crl.envs import make_environment
    from crl.rollout.environments import Readable, step_or_error

    shown = None if prompts is None else _actor_prompt(prompts)
    kept = None if record is None else Recording(record, family, first_seed)
    seeds = family.train_seeds
    with closing(make_environment(family)) as environment:
        readable = Readable(environment)
        seed = first_seed
        while True:
            start = readable.reset_many([seed])[0]
            if start.error is not None:
                reason = "\n".join(filter(None, [start.error, start.details]))
                raise BadInput(f"the game of seed {seed} does not start: {reason}", where=family.environment.kind)
            say(f"-- seed {seed} --")
            _show_start(start, shown)
            turns: list[dict[str, Any]] = []
            actions, step = start.actions, None
            try:
                while step is None or not step.done:
                    said = typed_line()
                    action = action_of(said, actions)
                    step = step_or_error(readable, {0: action})[0]
                    came = {"legal": step.legal, "feedback": step.feedback, "observation": step.observation}
                    turns.append({"text": said, "action": action, **came})
                    _show_step(step, shown, start.goal)
                    actions = step.actions
            except (EOFError, KeyboardInterrupt) as end:
                _stop(kept, seed, start, turns, end)
                return
            say(f"-- {outcome_words(step, len(turns))} --\n")
            if kept is not None:
                kept.keep(seed, start, turns, step)
            seed += 1
            if kept is not None and seed >= seeds.start + seeds.count:
                say("that was the last seed of training")
                return


def action_of(typed: str, actions: Actions) -> str | None:
    """What a typed line gives to the environment: the action itself, or what an actor's answer with it would mean."""
    if isinstance(actions, tuple) and typed.strip() in actions:
        return typed.strip()
    return parse_action(typed, actions, "tag" if "<action>" in typed.lower() else "word")


class Recording:
    """A file of games (`crl.config.recorded`); games are added to what it holds."""

    def __init__(self, path: Path, family: FamilyConfig, first_seed: int) -> None:
        """Raises BadInput for a file of another environment, and for a seed that training may not draw."""
        from crl.config.recorded import first_line
        from crl.run.files import require_writable
        from crl.run.journal import JsonLines

        seeds = family.train_seeds
        if not seeds.start <= first_seed < seeds.start + seeds.count:
            raise BadInput(
                f"seed {first_seed} is not a training seed, and recorded games are training data",
                expected=f"a seed from {seeds.start} to {seeds.start + seeds.count - 1}",
                where="--seed",
            )
        possible_path(path, "the file")
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise BadInput(f"--record {short(path)} cannot be written", expected="a file in a folder that exists")
        require_writable(path.absolute().parent, f"--record {path}")
        self.path, self._lines, self.games = path, JsonLines(path), 0
        head = first_line(family.environment)
        if not path.exists() or path.stat().st_size == 0:
            try:
                self._lines.append(head)
            except CrlError:
                if path.exists() and path.stat().st_size == 0:
                    path.unlink()  # nothing half-written is left over
                raise
            return
        with path.open("rb") as file:
            line = file.readline(2**20)
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if found != head:
            raise BadInput(
                f"--record {short(path)} holds something else, or games of another environment",
                expected=json.dumps(head["environment"], ensure_ascii=False),
                next_step="record into a new file",
            )

    def keep(self, seed: int, start: Start, turns: Sequence[Mapping[str, Any]], last: Step | None) -> None:
        """Add a game and sync it; `last` is its last step, None where it was broken off."""
        done = last is not None and last.done and last.error is None
        self._lines.append(
            {
                "seed": seed, "goal": start.goal, "observation": start.observation, "turns": list(turns),
                "finished": done, "success": last is not None and done and last.success,
                "reward": last.reward if last is not None and done else 0.0,
            }
        )  # fmt: skip
        self.games += done


def typed_line() -> str:
    """The next line that is not blank, of a terminal or a pipe. Raises EOFError at the end."""
    while sys.stdin is not None:
        said = input("> ") if sys.stdin.isatty() else sys.stdin.readline()
        if not sys.stdin.isatty():
            if not said:
                raise EOFError
            say(f"> {said.rstrip()}")
        if said.strip():
            return said.strip()
    raise EOFError  # closed by whoever started this


def _stop(
    kept: Recording | None, seed: int, start: Start, turns: Sequence[Mapping[str, Any]], end: BaseException
) -> None:
    if kept is not None:
        if turns:
            kept.keep(seed, start, turns, None)
        count = "1 finished game is" if kept.games == 1 else f"{kept.games} finished games are"
        say(f"\n{count} in {kept.path}" + (", and one unfinished" if turns else ""))
    if isinstance(end, KeyboardInterrupt):
        raise typer.Exit(INTERRUPTED)


def outcome_words(step: Step, turns: int) -> str:
    """How a game ended."""
    if step.error is not None:
        return f"the environment broke: {step.error}"
    how = "solved" if step.success else f"not solved ({(step.stop_reason or 'failure').replace('_', ' ')})"
    return f"{how} in {turns} turn{'s' if turns != 1 else ''}, reward {step.reward:g}"


def _show_start(start: Start, prompt: PromptConfig | None) -> None:
    if prompt is None:
        say(f"{start.goal}\n\n{start.observation}\n\n({actions_text(start.actions)})")
        return
    messages = actor_messages(
        prompt,
        goal=start.goal,
        observation=start.observation,
        actions=start.actions,
        experience=None,
        placement="user",
        own=start.messages,
    )
    for message in messages:
        say(f"[{message['role']}]\n{message['content']}\n")


def _show_step(step: Step, prompt: PromptConfig | None, goal: str) -> None:
    if prompt is None or step.done:
        say_step(step)
        return
    text = following_text(prompt, goal=goal, observation=step.observation, actions=step.actions, feedback=step.feedback)
    say(f"[user]\n{text}\n")


def say_step(step: Step) -> None:
    """What an environment says to an action."""
    said = [step.feedback, step.observation, "" if step.done else f"({actions_text(step.actions)})"]
    say("\n".join(each for each in said if each))


def _actor_prompt(name: str) -> PromptConfig:
    """The prompt `actor` of a file of prompts, or of a name under `prompts/` or `conf/prompts/`."""
    from pydantic import ValidationError

    from crl.config import PromptConfig
    from crl.config.load import find_prompts, listed_errors, read_yaml

    if name.endswith((".yaml", ".yml")):
        path = Path(name)
    else:
        base = Path("conf") if Path("conf/prompts").is_dir() else Path()
        path = find_prompts(name, base, "--prompt")
    data = read_yaml(path)
    if "actor" not in data:
        raise BadInput(f"{path} has no prompt `actor`", expected="prompts by name, `actor` among them")
    try:
        return PromptConfig.model_validate(data["actor"])
    except ValidationError as error:
        raise BadInput(f"{path} is not a file of prompts:\n" + "\n".join(listed_errors(error))) from None
