"""What is checked before work starts: the prompts' placeholders, their room in the models' contexts, an offline bank.

Room is measured with the model's own chat format and the first held-out task of each family. Only tokenizers are
loaded. Later prompts may be longer; a trajectory is then shortened, and an episode ends at the context limit.
"""

from __future__ import annotations

from pathlib import Path

from crl.config import Method
from crl.errors import BadInput, PromptTooLong
from crl.policies import load_chat, resolve_model
from crl.protocols import Chat, Start
from crl.recipes.complementary.config import ACTOR, EXTRACTOR, BankRecipeConfig, config_of
from crl.run.manifest import key_of


def check_ready(method: Method, run_path: Path) -> None:
    """Raise BadInput where prompts do not fit the models, or where an offline bank would stay empty."""
    check_placeholders(method)
    check_offline_bank(config_of(method), run_path)
    # A run that has begun was checked with the method that it keeps; loading tokenizers takes seconds.
    if not run_path.joinpath("rounds", key_of(0, "initialise")).is_dir():
        check_room(method)
        check_demonstrations(method)


def check_demonstrations(method: Method) -> None:
    """Raise BadInput where recorded games are of another environment than there is now."""
    from contextlib import ExitStack, closing

    from crl.envs import make_environment
    from crl.recipes.complementary.recorded import check_recorded

    start = config_of(method).warm_start
    if start is None or start.actor_episodes == 0 or start.recorded is None:
        return
    with ExitStack() as stack:
        made = {each.name: stack.enter_context(closing(make_environment(each))) for each in method.families}
        check_recorded(method, made)


def check_offline_bank(config: BankRecipeConfig, run_path: Path) -> None:
    """Raise BadInput for an offline bank that nothing fills: no warm-up round builds it, and none was imported."""
    if config.BANK_CHANGES_AFTER_WARM_UP or config.warm_up_rounds > 0:
        return
    from crl.run.imports import imported_files

    if not imported_files(run_path):
        raise BadInput(
            "the offline bank would stay empty: no round builds it and none was imported",
            expected="warm_up_rounds above 0, in which the bank is built, or a bank that was imported",
            where="method.recipe.warm_up_rounds",
            next_step="set warm_up_rounds, or run `crl bank import` first",
        )


def check_placeholders(method: Method) -> None:
    """Raise BadInput naming the prompt and the placeholder that nobody fills, or the experience in the wrong place."""
    from crl.extractor import prompts as extractor_prompts
    from crl.rollout import prompts as actor_prompts
    from crl.rollout.critic import check_critic_prompt

    actor_prompts.check_prompts(method.prompts, method.rollout.placement)
    extractor_prompts.check_prompts(method.prompts)
    if "critic" in method.prompts:
        check_critic_prompt(method.prompts["critic"])


def check_room(method: Method) -> None:
    """Raise PromptTooLong where a prompt leaves no room for an answer."""
    from crl.extractor.prompts import check_room as check_extractor_room
    from crl.rollout.critic import check_critic_room

    config = config_of(method)
    actor = _chat(method, ACTOR)
    check_actor_room(actor, method)
    if config.actor_critic is not None:
        check_critic_room(actor, method.role(ACTOR).context, method.prompts["critic"], config.actor_critic)
    if config.has_bank:
        check_extractor_room(_chat(method, EXTRACTOR), method.role(EXTRACTOR), method.prompts)


def check_actor_room(chat: Chat, method: Method) -> None:
    """Raise PromptTooLong where the first prompt of a family's first held-out task does not fit."""
    from crl.envs import make_environment
    from crl.rollout.prompts import opened
    from crl.rollout.readable import Readable

    role = method.role(ACTOR)
    allowed = role.context - role.sampling.max_new_tokens
    for family in method.families:
        environment = make_environment(family)
        try:
            start = Readable(environment).reset_many([family.evaluation_seeds.start])[0]
        finally:
            environment.close()
        _check_actions(method, family.name, start)
        _, token_ids = opened(chat, method.prompts["actor"], start, experience=None, placement=method.rollout.placement)
        needed = len(token_ids)
        if needed > allowed:
            raise PromptTooLong(
                f"the first prompt of family {family.name} takes {needed} tokens",
                expected=f"at most {allowed}: actor.context {role.context} less "
                f"{role.sampling.max_new_tokens} new tokens",
                where="method.prompts.actor",
                next_step="shorten the prompt or its examples, or raise method.roles.actor.context",
            )


def _check_actions(method: Method, family: str, start: Start) -> None:
    """Raise BadInput where a setting needs actions that can be listed and the environment lists none."""
    if isinstance(start.actions, tuple):
        return
    warm_start = getattr(method.recipe, "warm_start", None)
    asking = {
        "method.roles.actor.sampling.constrain": method.role(ACTOR).sampling.constrain == "actions",
        "method.recipe.warm_start.demonstrations": warm_start is not None
        and warm_start.actor_episodes > 0
        and warm_start.demonstrations == "random",
    }
    for where in (where for where, asked in asking.items() if asked):
        raise BadInput(
            f"the environment of family {family} lists no actions: it parses what the actor writes",
            expected="an environment with enumerated actions",
            where=where,
            next_step="choose another value, or leave it out",
        )


def _chat(method: Method, role: str) -> Chat:
    config = method.role(role)
    chat, longest = load_chat(resolve_model(config.model), multi_turn=method.recipe.roles()[role].multi_turn)
    if longest is not None and config.context > longest:
        raise BadInput(
            f"{role}.context is {config.context}",
            expected=f"at most {longest}, which the model {config.model} was made for",
            where=f"method.roles.{role}.context",
            next_step="lower it, or choose a model with a longer context",
        )
    return chat
