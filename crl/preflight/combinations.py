"""Settings that are fine one by one and impossible together: refused before any work starts, each at its place.

What a single field may hold is said by its bounds (`crl/config/`); what has to be there on this machine is checked in
`crl/preflight.py`. Here is only what would run for hours and do nothing of what was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from crl.config import Method, RecipeName
from crl.errors import BadInput


def check_combinations(method: Method) -> None:
    """Raise BadInput for the first combination that cannot work; `where` is the setting to change."""
    for problem in _problems(method):
        raise problem


def check_offline_bank(method: Method, run_path: Path) -> None:
    """Raise BadInput for an offline bank that nothing fills: no warm-up round builds it, and none was imported."""
    if method.recipe is not RecipeName.offline_bank or method.warm_up_rounds > 0:
        return
    from crl.run.imports import imported_files

    if not imported_files(run_path):
        raise BadInput(
            "the offline bank would stay empty: no round builds it and none was imported",
            expected="warm_up_rounds above 0, in which the bank is built, or a bank that was imported",
            where="method.warm_up_rounds",
            next_step="set warm_up_rounds, or run `crl bank import` first",
        )


def _problems(method: Method) -> Iterator[BadInput]:
    rollout = method.rollout
    if rollout.guided_share_end is not None and rollout.guided_share_rounds == 0:
        yield BadInput(
            f"the guided share is to end at {rollout.guided_share_end}, after no rounds",
            expected="guided_share_rounds above 0: over so many rounds the share moves",
            where="method.rollout.guided_share_rounds",
            next_step="set it, or set guided_share alone",
        )
    if rollout.guided_share_rounds > 0 and rollout.guided_share_end is None:
        yield BadInput(
            f"the guided share is to move over {rollout.guided_share_rounds} rounds, towards nothing",
            expected="guided_share_end: the share after these rounds",
            where="method.rollout.guided_share_end",
            next_step="set it, or leave guided_share_rounds out",
        )
    yield from _constrained(method)
    start = method.warm_start
    if start is not None and start.actor_episodes > 0 and start.demonstrations == "oracle":
        for family in method.families:
            if family.environment.hidden_rule:
                yield BadInput(
                    f"the oracle of family {family.name} knows the hidden rule, and its demonstrations tell it",
                    expected="demonstrations: practice (shrines) or random, or a warm start in practice realms "
                    "(`crl warm-start`)",
                    where="method.warm_start.demonstrations",
                    next_step="set it to practice or random, or leave warm_start out",
                )
    if start is not None and start.demonstrations == "practice":
        for family in method.families:
            if not family.environment.teaches:
                yield BadInput(
                    f"the environment of family {family.name} has no practice games",
                    expected="an environment that teaches (shrines), or demonstrations: oracle or random",
                    where="method.warm_start.demonstrations",
                    next_step="choose another kind of demonstrations",
                )
    shares = {method.rollout.guided_members(1), method.rollout.guided_members(1 + rollout.guided_share_rounds)}
    needs_guided = {
        "method.actor_critic": method.actor_critic is not None,
        "method.self_distillation": method.self_distillation is not None,
        "method.rollout.search_and_ask": rollout.search_and_ask is not None,
    }
    for where, asked in needs_guided.items():
        if not asked:
            continue
        if method.recipe is RecipeName.baseline:
            yield _never_guided(where, "recipe baseline keeps no bank, so no episode is guided", "another recipe")
        elif shares == {0}:
            yield _never_guided(where, "guided_share leaves every member of a group free", "a share that guides some")
    if method.actor_critic is not None and method.retrieval.top_k > 1:
        yield BadInput(
            f"the actor judges one experience an episode (eq. 8), and top_k is {method.retrieval.top_k}",
            expected="top_k 1, or no actor_critic",
            where="method.retrieval.top_k",
            next_step="set it to 1, or leave actor_critic out",
        )
    if method.actor_critic is not None and method.prompts.critic is None:
        yield _without_prompt("critic", "the actor is to judge experiences", "method.prompts.critic")
    if rollout.search_and_ask is not None and method.prompts.ask is None:
        yield _without_prompt("ask", "guided actors may ask", "method.prompts.ask")
    trains_answers = rollout.search_and_ask is not None and rollout.search_and_ask.train_answers
    if trains_answers and method.recipe in (RecipeName.static_online, RecipeName.offline_bank):
        yield BadInput(
            f"recipe {method.recipe.value} does not train the extractor, so none of its answers would be trained",
            expected="a recipe that trains the extractor",
            where="method.rollout.search_and_ask.train_answers",
            next_step="leave it out, or choose another recipe",
        )
    if method.self_distillation is not None:
        if method.recipe is RecipeName.experience_only:
            yield BadInput(
                "recipe experience_only does not train the actor, so it distils nothing into it",
                expected="a recipe that trains the actor",
                where="method.self_distillation",
                next_step="leave self_distillation out, or choose another recipe",
            )
        if method.self_distillation.episodes == "beats_free" and shares == {rollout.group_size}:
            yield BadInput(
                "guided episodes are to beat their free twins, and guided_share leaves no member free",
                expected="a share that leaves some free, or episodes: wins",
                where="method.self_distillation.episodes",
                next_step="lower rollout.guided_share, or set self_distillation.episodes to wins",
            )


def _constrained(method: Method) -> Iterator[BadInput]:
    """What sampling restricted to the legal actions cannot go with."""
    if method.extractor.sampling.constrain == "actions":
        yield BadInput(
            "the extractor's sampling is restricted to actions, and it writes text",
            expected="constrain: none",
            where="method.extractor.sampling.constrain",
            next_step="leave it out",
        )
    if method.actor.sampling.constrain == "none":
        return
    hindered = {
        "method.rollout.action_format": (
            method.rollout.action_format == "tag",
            "answers with thoughts and tags",
            "word",
        ),
        "method.rollout.search_and_ask": (method.rollout.search_and_ask is not None, "questions", "none"),
    }
    for where, (asked, what, expected) in hindered.items():
        if asked:
            yield BadInput(
                f"the actor answers with a legal action and nothing else, so there would be no {what}",
                expected=f"{where.split('.')[-1]}: {expected}, or actor.sampling.constrain: none",
                where=where,
                next_step="change one of the two",
            )


def _never_guided(where: str, found: str, expected: str) -> BadInput:
    return BadInput(
        f"{found}: what {where.removeprefix('method.')} asks for would never happen",
        expected=expected,
        where=where,
        next_step="leave it out, or change what keeps episodes free",
    )


def _without_prompt(name: str, found: str, where: str) -> BadInput:
    return BadInput(
        f"{found}, and there is no prompt for it",
        expected=f"a prompt `{name}` in the prompt set",
        where=where,
        next_step=f"add `{name}` to the prompt file, or leave the setting out",
    )
