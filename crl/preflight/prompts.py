"""Prompts checked before work starts: placeholders, the experience's place, and room in the model's context.

Room is measured with the model's own chat format and the first held-out task of each family. Only tokenizers are
loaded. Later prompts may be longer; a trajectory is then shortened, and an episode ends at the context limit.
"""

from __future__ import annotations

from crl.config import Method
from crl.errors import BadInput, PromptTooLong
from crl.policies import load_chat, resolve_model
from crl.policies.chat import ChatFormat
from crl.protocols import Start


def check_placeholders(method: Method) -> None:
    """Raise BadInput naming the prompt and the placeholder that nobody fills, or the experience in the wrong place."""
    from crl.extractor import prompts as extractor_prompts
    from crl.rollout import prompts as actor_prompts
    from crl.rollout.critic import check_critic_prompt

    actor_prompts.check_prompts(method.prompts, method.rollout.placement)
    extractor_prompts.check_prompts(method.prompts)
    check_critic_prompt(method.prompts)


def check_room(method: Method, *, extractor: bool) -> None:
    """Raise PromptTooLong where a prompt leaves no room for an answer. `extractor` False: the recipe has none."""
    from crl.extractor.prompts import check_room as check_extractor_room
    from crl.rollout.critic import check_critic_room

    actor = _chat(method, "actor")
    check_actor_room(actor, method)
    check_critic_room(actor, method.actor.context, method)
    if extractor:
        check_extractor_room(_chat(method, "extractor"), method.extractor.context, method)


def check_actor_room(chat: ChatFormat, method: Method) -> None:
    """Raise PromptTooLong where the first prompt of a family's first held-out task does not fit."""
    from crl.envs import make_environment
    from crl.rollout.prompts import opened

    allowed = method.actor.context - method.actor.sampling.max_new_tokens
    for family in method.families:
        environment = make_environment(family)
        try:
            start = environment.reset_many([family.evaluation_seeds.start])[0]
        finally:
            environment.close()
        _check_actions(method, family.name, start)
        _, token_ids = opened(chat, method.prompts.actor, start, experience=None, placement=method.rollout.placement)
        needed = len(token_ids)
        if needed > allowed:
            raise PromptTooLong(
                f"the first prompt of family {family.name} takes {needed} tokens",
                expected=f"at most {allowed}: actor.context {method.actor.context} less "
                f"{method.actor.sampling.max_new_tokens} new tokens",
                where="method.prompts.actor",
                next_step="shorten the prompt or its examples, or raise method.actor.context",
            )


def _check_actions(method: Method, family: str, start: Start) -> None:
    """Raise BadInput where a setting needs actions that can be listed and the environment lists none."""
    if isinstance(start.actions, tuple):
        return
    asking = {
        "method.actor.sampling.constrain": method.actor.sampling.constrain == "actions",
        "method.warm_start.demonstrations": method.warm_start is not None
        and method.warm_start.actor_episodes > 0
        and method.warm_start.demonstrations == "random",
    }
    for where in (where for where, asked in asking.items() if asked):
        raise BadInput(
            f"the environment of family {family} lists no actions: it parses what the actor writes",
            expected="an environment with enumerated actions",
            where=where,
            next_step="choose another value, or leave it out",
        )


def _chat(method: Method, role: str) -> ChatFormat:
    config = method.role(role)
    chat, longest = load_chat(resolve_model(config.model), multi_turn=role == "actor")
    if longest is not None and config.context > longest:
        raise BadInput(
            f"{role}.context is {config.context}",
            expected=f"at most {longest}, which the model {config.model} was made for",
            where=f"method.{role}.context",
            next_step="lower it, or choose a model with a longer context",
        )
    return chat
