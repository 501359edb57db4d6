"""What is checked before work starts: the prompts' placeholders, and their room in the models' contexts."""

from __future__ import annotations

from pathlib import Path

from crl.config import Method
from crl.policies import load_chat, resolve_model
from crl.recipes.complementary.ready import check_actor_room
from crl.recipes.dreamgym.config import ACTOR, ANNOTATE, EXPERIENCE, PREDICT, TEACHER, VARY, config_of
from crl.recipes.dreamgym.prompts import check_prompt, check_room
from crl.rollout.prompts import check_prompts
from crl.run.manifest import key_of

ASKED = {PREDICT: EXPERIENCE, VARY: EXPERIENCE, ANNOTATE: TEACHER}
"""Role that is asked with each prompt."""


def check_ready(method: Method, run_path: Path) -> None:
    """Raise BadInput or PromptTooLong where prompts do not fit what they are for, or the models."""
    asked = {name: role for name, role in ASKED.items() if name in config_of(method).prompts()}
    for family in method.families:
        prompts = method.prompts_of(family.name)
        check_prompts(prompts, method.rollout.placement)
        for name in asked:
            check_prompt(name, prompts[name])
    # A run that has begun was checked with the method that it keeps; loading tokenizers takes seconds.
    if run_path.joinpath("rounds", key_of(0, "initialise")).is_dir():
        return
    actor, _ = load_chat(resolve_model(method.role(ACTOR).model), multi_turn=True)
    check_actor_room(actor, method)
    for name, owner in asked.items():
        role = method.role(owner)
        chat, _ = load_chat(resolve_model(role.model), multi_turn=False)
        for family in method.families:
            check_room(chat, role, name, method.prompts_of(family.name)[name], owner)
