"""What is checked before work starts: the prompts' placeholders, their room in the models' contexts, an offline bank.

Room is measured with the model's own chat format and the first held-out task of each family. Only tokenizers are
loaded. Later prompts may be longer; a trajectory is then shortened, and an episode ends at the context limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from crl.config import Method, PromptConfig
from crl.errors import BadInput, PromptTooLong
from crl.protocols import Chat, Start
from crl.recipes.complementary.config import ACTOR, EXTRACTOR, BankRecipeConfig, config_of
from crl.rounds.chats import chat_of, check_reads, check_writes
from crl.run.manifest import key_of


def check_ready(method: Method, run_path: Path) -> None:
    """Raise BadInput where prompts do not fit the models, or where an offline bank would stay empty."""
    check_placeholders(method)
    check_offline_bank(config_of(method), run_path)
    # A run that has begun was checked with the method that it keeps; loading tokenizers takes seconds.
    if not run_path.joinpath("rounds", key_of(0, "initialize")).is_dir():
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

    def check(prompts: Mapping[str, PromptConfig]) -> None:
        actor_prompts.check_prompts(prompts, method.rollout.placement)
        extractor_prompts.check_prompts(prompts)
        if "critic" in prompts:
            check_critic_prompt(prompts["critic"])

    check(method.prompts)
    for family in _with_own_prompts(method):
        with _told_of(family):
            check(method.prompts_of(family))


def check_room(method: Method) -> None:
    """Raise PromptTooLong where a prompt leaves no room for an answer."""
    from crl.extractor.prompts import check_room as check_extractor_room
    from crl.rollout.critic import check_critic_room

    config = config_of(method)
    actor = chat_of(method, ACTOR)
    extractor = chat_of(method, EXTRACTOR) if config.has_bank else None
    check_actor_room(actor, method, readers={} if extractor is None else {EXTRACTOR: extractor})

    def check(prompts: Mapping[str, PromptConfig]) -> None:
        if config.actor_critic is not None:
            check_critic_room(actor, method.role(ACTOR).context, prompts["critic"], config.actor_critic)
        if extractor is not None:
            check_extractor_room(extractor, method.role(EXTRACTOR), prompts)

    check(method.prompts)
    for family in _with_own_prompts(method):
        with _told_of(family):
            check(method.prompts_of(family))


def _with_own_prompts(method: Method) -> list[str]:
    """Names of the task families that have prompts of their own."""
    return [family.name for family in method.families if family.prompts is not None]


@contextmanager
def _told_of(family: str) -> Iterator[None]:
    """An error about the prompts of a family names it."""
    try:
        yield
    except BadInput as error:
        where = f"family {family}, {error.where}"
        raise type(error)(error.found, expected=error.expected, where=where, next_step=error.next_step) from None


def check_actor_room(
    chat: Chat, method: Method, *, instructions: int | None = None, readers: Mapping[str, Chat] = MappingProxyType({})
) -> None:
    """Raise PromptTooLong where the first prompt of a family's first held-out task does not fit, BadInput where the
    tokenizer loses some of it, or of an action.

    Args:
        chat: of the actor.
        method: what is played.
        instructions: also with a reflection of so many tokens in place of the system text.
        readers: chats of other roles that read what environments show.
    """
    from crl.envs import make_environment
    from crl.recipes.complementary.demonstrations import as_answer
    from crl.rollout.actions import named_actions
    from crl.rollout.environments import Readable
    from crl.rollout.prompts import opened

    role = method.role(ACTOR)
    for family in method.families:
        prompt, new = method.prompts_of(family.name)[ACTOR], method.sampling(ACTOR, family.name).max_new_tokens
        allowed = role.context - new
        place = f"family {family.name}, method.families[]" if ACTOR in (family.prompts or {}) else "method"
        environment = make_environment(family)
        try:
            start = Readable(environment).reset_many([family.evaluation_seeds.start])[0]
        finally:
            environment.close()
        _check_actions(method, family.name, start)
        messages, token_ids = opened(chat, prompt, start, experience=None, placement=method.rollout.placement)
        if start.error is None:
            check_reads(chat, method, ACTOR, family.name, [message["content"] for message in messages])
            answers = {action: as_answer(method, action) for action in named_actions(start.actions)}
            check_writes(chat, method, ACTOR, family.name, answers)
            for name, reader in readers.items():
                check_reads(reader, method, name, family.name, [start.goal, start.observation])
        prompts = [(len(token_ids), "", f"{place}.prompts.actor", "shorten the prompt or its examples")]
        if instructions is not None:
            _, token_ids = opened(chat, prompt, start, experience="", placement="instructions")
            told = f" with a reflection of {instructions} in its system text"
            where, advice = "roles.reflector.sampling.max_new_tokens", "lower it, lower recipe.reflect.max_characters"
            prompts.append((len(token_ids) + instructions, told, f"method.{where}", advice))
        for needed, told, where, advice in prompts:
            if needed > allowed:
                raise PromptTooLong(
                    f"the first prompt of family {family.name} takes {needed} tokens{told}",
                    expected=f"at most {allowed}: actor.context {role.context} less {new} new tokens",
                    where=where,
                    next_step=f"{advice}, or raise method.roles.actor.context",
                )


def _check_actions(method: Method, family: str, start: Start) -> None:
    """Raise BadInput where a setting needs actions that can be listed and the environment lists none."""
    if isinstance(start.actions, tuple):
        return
    warm_start = getattr(method.recipe, "warm_start", None)
    asking = {
        "method.roles.actor.sampling.constrain": method.sampling(ACTOR, family).constrain == "actions",
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
