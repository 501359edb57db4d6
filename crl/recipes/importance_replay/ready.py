"""What is checked before work starts: the prompts' placeholders, and their room in the actor's context."""

from __future__ import annotations

from pathlib import Path

from crl.config import Method
from crl.recipes.importance_replay.config import ACTOR
from crl.rollout.prompts import check_prompts
from crl.rounds.ready import chat_of, check_actor_room
from crl.run.manifest import key_of


def check_ready(method: Method, run_path: Path) -> None:
    """Raise BadInput or PromptTooLong where prompts do not fit what they are for, or the model."""
    for family in method.families:
        check_prompts(method.prompts_of(family.name), method.rollout.placement)
    # A run that has begun was checked with the method that it keeps; loading tokenizers takes seconds.
    if not run_path.joinpath("rounds", key_of(0, "initialize")).is_dir():
        actor = chat_of(method, ACTOR)
        check_actor_room(actor, method)
