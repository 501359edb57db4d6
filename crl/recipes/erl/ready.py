"""What is checked before work starts: the prompts' placeholders, and their room in the models' contexts."""

from __future__ import annotations

from pathlib import Path

from crl.config import Method
from crl.recipes.erl.config import ACTOR, REFLECT, REFLECTOR, config_of
from crl.recipes.erl.prompts import check_reflect_prompt, check_reflect_room
from crl.rollout.prompts import check_prompts
from crl.rounds.ready import chat_of, check_actor_room
from crl.run.manifest import key_of


def check_ready(method: Method, run_path: Path) -> None:
    """Raise BadInput or PromptTooLong where prompts do not fit what they are for, or the models."""
    config = config_of(method)
    for family in method.families:
        prompts = method.prompts_of(family.name)
        check_prompts(prompts, method.rollout.placement)
        if config.reflect is not None:
            check_reflect_prompt(prompts[REFLECT], memory=config.has_memory)
    # A run that has begun was checked with the method that it keeps; loading tokenizers takes seconds.
    if run_path.joinpath("rounds", key_of(0, "initialize")).is_dir():
        return
    actor = chat_of(method, ACTOR)
    if config.reflect is None:
        check_actor_room(actor, method)
        return
    role = method.role(REFLECTOR)
    # A token is a character at least, but for rare ones.
    longest, reflector = min(role.sampling.max_new_tokens, config.reflect.max_characters), chat_of(method, REFLECTOR)
    check_actor_room(actor, method, instructions=longest, readers={REFLECTOR: reflector})
    for family in method.families:
        check_reflect_room(reflector, role, method.prompts_of(family.name)[REFLECT])
