"""What is checked before work starts: the prompts' placeholders, their room in the models' contexts, and what a
setting asks of the environments."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from crl.config import Method
from crl.errors import BadInput
from crl.protocols import Graded
from crl.recipes.dreamgym.config import ACTOR, ANNOTATE, EXPERIENCE, PREDICT, TEACHER, VARY, config_of
from crl.recipes.dreamgym.prompts import check_prompt, check_room
from crl.rollout.environments import Readable
from crl.rollout.prompts import check_prompts
from crl.rounds.ready import chat_of, check_actor_room
from crl.run.manifest import key_of

ASKED = {PREDICT: EXPERIENCE, VARY: EXPERIENCE, ANNOTATE: TEACHER}
"""Role that is asked with each prompt."""


def check_ready(method: Method, run_path: Path) -> None:
    """Raise BadInput or PromptTooLong where prompts do not fit what they are for, or the models, and where a setting
    asks for what no environment has."""
    asked = {name: role for name, role in ASKED.items() if name in config_of(method).prompts()}
    for family in method.families:
        prompts = method.prompts_of(family.name)
        check_prompts(prompts, method.rollout.placement)
        for name in asked:
            check_prompt(name, prompts[name])
    # A run that has begun was checked with the method that it keeps; loading tokenizers takes seconds.
    if run_path.joinpath("rounds", key_of(0, "initialize")).is_dir():
        return
    check_environments(method)
    readers = {role: chat_of(method, role) for role in sorted(set(asked.values()))}
    check_actor_room(chat_of(method, ACTOR), method, readers=readers)
    for name, owner in asked.items():
        for family in method.families:
            check_room(readers[owner], method.role(owner), name, method.prompts_of(family.name)[name], owner)


def check_environments(method: Method) -> None:
    """Raise BadInput where random actions are to be played and an environment lists none, and where new tasks are to be
    as hard as the measured capability and no environment grades its levels."""
    from crl.envs import make_environment

    config, curriculum = config_of(method), config_of(method).curriculum
    by_chance = config.explore.policy == "random"
    graded = curriculum is None or not curriculum.share or curriculum.rule != "capability"
    # Where nobody plays in the model, nothing is explored for it and no task is new.
    if not config.fits(1) or (graded and not by_chance):
        return
    for family in method.families:
        with closing(make_environment(family)) as environment:
            graded = graded or isinstance(environment, Graded)
            [start] = Readable(environment, method.rollout.longest_observation).reset_many([family.train_seeds.start])
        if by_chance and start.error is None and not isinstance(start.actions, tuple):
            raise BadInput(
                f"the environment of family {family.name} lists no actions to choose from at random: it parses what "
                "the actor writes",
                expected="an environment with enumerated actions, or an actor that explores",
                where="method.recipe.explore.policy",
                next_step="set it to actor",
            )
    if not graded:
        raise BadInput(
            "new tasks are to be as hard as the measured capability, and no environment says how hard its levels are",
            expected="a task family whose environment grades its levels (protocol Graded), such as frozenlake",
            where="method.recipe.curriculum.rule",
            next_step="set it to variance, or curriculum to null",
        )
