"""What is checked before work starts: prompts and their room in the models' contexts, a teacher, an offline bank.

Room is measured with the model's own chat format and the first held-out task of each family. Only tokenizers are
loaded. Later prompts may be longer; a trajectory is then shortened, and an episode ends at the context limit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING

from crl.config import FamilyConfig, Method, PromptConfig
from crl.config.models import ADAPTER_CONFIG
from crl.errors import BadInput
from crl.protocols import Environment
from crl.recipes.complementary.config import ACTOR, EXTRACTOR, BankRecipeConfig, config_of
from crl.rounds.ready import chat_of, check_actor_room, check_placeholders, check_prompt_sets
from crl.run.manifest import key_of

if TYPE_CHECKING:
    from crl.policies.sources import TrainedWeights


def check_ready(method: Method, run_path: Path) -> None:
    """Raise BadInput where prompts do not fit the models, or where an offline bank would stay empty."""
    check_placeholders(method)
    check_offline_bank(config_of(method), run_path)
    # A run that has begun was checked with the method that it keeps; loading tokenizers takes seconds.
    if not run_path.joinpath("rounds", key_of(0, "initialize")).is_dir():
        check_room(method)
        check_teacher(method)
        check_demonstrations(method)
        check_adapters(method)


def check_teacher(method: Method) -> None:
    """Raise BadInput where a teacher, which reads the actor's ids, knows other tokens by them."""
    config = config_of(method).context_distillation
    if config is None or config.teacher is None:
        return
    from crl.policies.sources import vocabulary

    own, other = (vocabulary(method.role(role).model) for role in (ACTOR, config.teacher))
    if own != other:
        differing = {token for token, _ in own.items() ^ other.items()}
        raise BadInput(
            f"the role {config.teacher} has another vocabulary than the actor: {len(differing)} tokens differ, "
            f"{min(differing)!r} for example",
            expected="a model with the actor's tokenizer",
            where="method.recipe.context_distillation.teacher",
            next_step="name a model of the actor's family, or leave teacher out: the actor teaches itself",
        )


def check_demonstrations(method: Method) -> None:
    """Raise BadInput where recorded games are of another environment than there is now, and where there is no oracle to
    imitate."""
    from contextlib import ExitStack, closing

    from crl.envs import make_environment
    from crl.recipes.complementary.recorded import check_recorded, require_games

    start = config_of(method).warm_start
    if start is None or start.actor_episodes == 0:
        return
    if start.recorded is None and start.demonstrations != "oracle":
        return
    if start.recorded is not None:
        require_games(method)
    with ExitStack() as stack:
        made = {each.name: stack.enter_context(closing(make_environment(each))) for each in method.families}
        if start.recorded is not None:
            check_recorded(method, made)
            return
        for family in method.families:
            _check_oracle(family, made[family.name])


def _check_oracle(family: FamilyConfig, environment: Environment) -> None:
    begun = environment.reset_many([family.train_seeds.start])[0]
    listed = isinstance(begun.actions, tuple)  # of these, any is imitated where no good one is known
    if begun.error is None and not listed and environment.oracle(0) is None:
        raise BadInput(
            f"the environment of family {family.name} knows no answer to imitate: its demonstrations would be empty",
            expected="an oracle (`solve` of a game; the column `completion` of a data set), or actions with names",
            where="method.recipe.warm_start.demonstrations",
            next_step="set warm_start.actor_episodes: 0, or record games: demonstrations: recorded",
        )


def check_adapters(method: Method) -> None:
    """Raise BadInput where a role cannot begin with its adapter of `warm_start.adapters`."""
    config = config_of(method)
    if config.warm_start is not None and config.warm_start.adapters is not None:
        for role in compress((ACTOR, EXTRACTOR), config.warm_starts()):
            adapter_of(method, role)


def adapter_of(method: Method, role: str) -> TrainedWeights:
    """The adapter that a role begins with. Raises BadInput where there is none, or it fits another model or rank."""
    from crl.policies.sources import resolve_model, trained_weights

    start, config, where = config_of(method).warm_start, method.role(role), "method.recipe.warm_start.adapters"
    assert start is not None and config.lora is not None, "refused in the config"
    name = f"{start.adapters}/{role}"
    found = trained_weights(name)
    if found is None or not found.adapter:
        raise BadInput(
            f"{name} is no adapter",
            expected="a folder of a peft adapter, a run with adapters, or a warm start that comes with the project",
            where=where,
            next_step="correct the name: it is followed by /actor and /extractor",
        )
    model = resolve_model(config.model)
    if found.base != config.model and (found.base_digest or resolve_model(found.base).digest) != model.digest:
        raise BadInput(
            f"the adapter {name} was trained from {found.base}, and the {role} is {config.model}",
            expected="an adapter of the role's model",
            where=where,
            next_step=f"set method.roles.{role}.model: {found.base}, or name another adapter",
        )
    settings = json.loads((found.checkpoint / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    for key, value in (("r", config.lora.r), ("lora_alpha", config.lora.lora_alpha)):
        if settings.get(key) != value:
            raise BadInput(
                f"the adapter {name} has {key} {settings.get(key)}, and the {role}'s lora.{key} is {value}",
                expected="equal settings: training goes on with the adapter as it is",
                where=f"method.roles.{role}.lora.{key}",
                next_step=f"set it to {settings.get(key)}",
            )
    return found


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


def check_room(method: Method) -> None:
    """Raise PromptTooLong where a prompt leaves no room for an answer."""
    from crl.extractor.prompts import check_room as check_extractor_room
    from crl.rollout.critic import check_critic_room

    config = config_of(method)
    actor = chat_of(method, ACTOR)
    extractor = chat_of(method, EXTRACTOR) if config.has_bank else None
    start = config.warm_start
    random = start is not None and start.actor_episodes > 0 and start.demonstrations == "random"
    check_actor_room(
        actor,
        method,
        readers={} if extractor is None else {EXTRACTOR: extractor},
        listed=["method.recipe.warm_start.demonstrations"] if random else [],
    )

    def check(prompts: Mapping[str, PromptConfig]) -> None:
        if config.actor_critic is not None:
            check_critic_room(actor, method.role(ACTOR).context, prompts["critic"], config.actor_critic)
        if extractor is not None:
            check_extractor_room(extractor, method.role(EXTRACTOR), prompts)

    check_prompt_sets(method, check)
