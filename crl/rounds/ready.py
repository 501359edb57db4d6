"""What every recipe checks before work starts: chat formats, placeholders of prompts, the room of the actor's.

Room is measured with the model's own chat format and the first held-out task of each family. Only tokenizers are
loaded. Later prompts may be longer; an episode ends at the context limit.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from crl.config import Method, PromptConfig
from crl.config.roles import SummaryHistory
from crl.errors import BadInput, PromptTooLong
from crl.policies import ModelSource, check_computable, load_chat
from crl.policies.sources import described
from crl.protocols import Chat, Start
from crl.rollout.actions import parse_action
from crl.text.unicode import valid_text

ACTOR = "actor"
_SHOWN = 5
"""Characters that a message lists."""
_AROUND = 20
"""Characters of each reading that a message shows where they part."""


def chat_of(method: Method, role: str) -> Chat:
    """A role's chat format. Raises BadInput where its model, or the template, is none for it or for its context."""
    config = method.role(role)
    source = ModelSource(Path() if config.engine.REMOTE else described(config.model), config.model, "")
    if not config.engine.SERVED or method.owner(role) in method.trained():
        check_computable(source)
    return load_chat(source, config, role=role)


def check_reads(chat: Chat, method: Method, role: str, family: str, texts: Iterable[str]) -> None:
    """Raise BadInput where the tokenizer of a role does not read what it is shown of a task family: where it has no
    token for a character, drops it or turns it into another one (capitals into small letters, say).

    How it reads white space, and forms of one character that Unicode calls compatible, are the tokenizer's own affair.
    """
    for text in texts:
        expected = _compared(text)
        found = _compared(chat.decode(chat.answer(text)))
        if not found.endswith(expected):
            missing = [character for character in dict.fromkeys(expected) if character not in found]
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            told = ", ".join(map(repr, missing[:_SHOWN])) + more if missing else _parting(expected, found)
            raise BadInput(
                f"the tokenizer of the {role} does not read what family {family} shows: it loses {told}",
                expected="a tokenizer that keeps every character, white space aside",
                where=f"method.roles.{method.owner(role)}.model",
                next_step="use another model, or have the environment and the prompts write otherwise",
            )


def check_writes(chat: Chat, method: Method, role: str, family: str, answers: Mapping[str, str]) -> None:
    """Raise BadInput where the tokenizer of a role cannot write an action of a task family.

    `answers`: what is written to take each action.
    """
    actions, form = tuple(answers), method.rollout.action_format
    for action, answer in answers.items():
        text = chat.decode(chat.answer(answer))
        if parse_action(text, actions, form, thinking=chat.opens_thought) != parse_action(answer, actions, form):
            raise BadInput(
                f"the tokenizer of the {role} cannot write the action {action!r} of family {family}: {answer!r} "
                f"becomes {text!r}",
                expected="a tokenizer that gives the action back",
                where=f"method.roles.{method.owner(role)}.model",
                next_step="use another model, or name the action otherwise",
            )


def _compared(text: str) -> str:
    """A text without white space, its characters in one form each."""
    return "".join(unicodedata.normalize("NFKC", valid_text(text)).split())


def _parting(expected: str, found: str) -> str:
    """Where two readings part, counted from their ends: before the text may be the end of a thought."""
    found = found[-len(expected) :] if len(found) > len(expected) else found
    same = next((i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), len(found))
    one, other = (text[same : same + _AROUND] for text in (expected, found))
    return f"{one!r}, which becomes {other!r}"


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

    check_prompt_sets(method, check)


def check_prompt_sets(method: Method, check: Callable[[Mapping[str, PromptConfig]], None]) -> None:
    """Check the prompts of a method and those of each family that has its own; an error about these names it."""
    check(method.prompts)
    for family in (each.name for each in method.families if each.prompts is not None):
        try:
            check(method.prompts_of(family))
        except BadInput as error:
            where = f"family {family}, {error.where}"
            raise type(error)(error.found, expected=error.expected, where=where, next_step=error.next_step) from None


def check_actor_room(
    chat: Chat,
    method: Method,
    *,
    instructions: int | None = None,
    readers: Mapping[str, Chat] = MappingProxyType({}),
    listed: Sequence[str] = (),
) -> None:
    """Raise PromptTooLong where the first prompt of a family's first held-out task does not fit, BadInput where the
    tokenizer loses some of it, or of an action.

    Args:
        chat: of the actor.
        method: what is played.
        instructions: also with a reflection of so many tokens in place of the system text.
        readers: chats of other roles that read what environments show.
        listed: keys of settings that need actions that can be listed.
    """
    from crl.envs import make_environment
    from crl.rollout.actions import named_actions
    from crl.rollout.environments import Readable
    from crl.rollout.prompts import opened
    from crl.rounds.demonstrations import as_answer

    role = method.role(ACTOR)
    for family in method.families:
        prompt = method.prompts_of(family.name)[ACTOR]
        new = max(sampling.max_new_tokens for sampling in method.samplings(ACTOR, family.name))
        allowed = role.context - new
        place = f"family {family.name}, method.families[]" if ACTOR in (family.prompts or {}) else "method"
        environment = make_environment(family)
        try:
            start = Readable(environment).reset_many([family.evaluation_seeds.start])[0]
        finally:
            environment.close()
        _check_actions(method, family.name, start, listed)
        messages, token_ids = opened(chat, prompt, start, experience=None, placement=method.rollout.placement)
        if start.error is None:
            check_reads(chat, method, ACTOR, family.name, [message["content"] for message in messages])
            answers = {action: as_answer(method, action) for action in named_actions(start.actions)}
            check_writes(chat, method, ACTOR, family.name, answers)
            for name, reader in readers.items():
                check_reads(reader, method, name, family.name, [start.goal, start.observation])
        what = f"the first prompt of family {family.name}"
        prompts = [(len(token_ids), what, f"{place}.prompts.actor", "shorten the prompt or its examples")]
        if instructions is not None:
            _, token_ids = opened(chat, prompt, start, experience="", placement="instructions")
            what += f" with a reflection of {instructions} in its system text"
            where, advice = "roles.reflector.sampling.max_new_tokens", "lower it, lower recipe.reflect.max_characters"
            prompts.append((len(token_ids) + instructions, what, f"method.{where}", advice))
        if isinstance(role.history, SummaryHistory):
            request = len(chat.reply(prompt.summarize or "", ended=False))
            what, where = f"a history of family {family.name} with the request for its summary", "roles.actor.history"
            prompts.append((role.history.summarize.at + request, what, f"method.{where}", "lower summarize.at"))
        for needed, what, where, advice in prompts:
            if needed > allowed:
                raise PromptTooLong(
                    f"{what} takes {needed} tokens",
                    expected=f"at most {allowed}: actor.context {role.context} less {new} new tokens",
                    where=where,
                    next_step=f"{advice}, or raise method.roles.actor.context",
                )


def _check_actions(method: Method, family: str, start: Start, listed: Sequence[str]) -> None:
    """Raise BadInput where a setting needs actions that can be listed and the environment lists none."""
    if isinstance(start.actions, tuple):
        return
    constrained = any(sampling.constrain == "actions" for sampling in method.samplings(ACTOR, family))
    for where in (*(["method.roles.actor.sampling.constrain"] if constrained else []), *listed):
        raise BadInput(
            f"the environment of family {family} lists no actions: it parses what the actor writes",
            expected="an environment with enumerated actions",
            where=where,
            next_step="choose another value, or leave it out",
        )
