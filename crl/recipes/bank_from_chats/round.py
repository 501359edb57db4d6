"""What the round of a bank from chats is made of: the file is read, each chat is distilled, the bank is published.

A chat becomes an episode that was not played here: what the assistant wrote are its actions, what stood before each of
them its observations. So the extractor is asked, and its outputs are read and checked, as in training.
"""

from __future__ import annotations

import json
from pathlib import Path

from crl.config import Method
from crl.extractor.distill import DistillItem, distill_wave
from crl.extractor.outputs import Distilled
from crl.extractor.prompts import check_prompts, check_room
from crl.recipes.bank_from_chats.chats import OK, Chat, ChatsConfig, read
from crl.recipes.bank_from_chats.config import EXTRACTOR, BankFromChatsConfig
from crl.records import Distillation, Episode, Generation, Operation, Turn
from crl.rounds.context import StageContext
from crl.rounds.proposal import with_cuts
from crl.rounds.publish import bank_stages, initialize_stage
from crl.rounds.ready import chat_of
from crl.rounds.stage import Read, Recipe, Stage
from crl.rounds.weights import update_name, weights_of
from crl.run.data_files import check_data

config_of = BankFromChatsConfig.of
READ = "read_chats"
"""Name of the stage that reads the file."""
_GOAL = "Answer the messages."
_OUTCOMES = {True: "success", False: "failure", None: "unknown"}


def build(method: Method) -> Recipe:
    """The recipe of a method."""
    return Recipe(
        name=method.recipe.kind,
        preparation=(initialize_stage,),
        stages=(
            Stage(name=READ, run=read_chats, writes=(Chat,), due=first_round),
            Stage(
                name="distill",
                parts=count_parts,
                run_part=distill_part,
                reads=(Read(READ), Read(update_name(method.owner(EXTRACTOR)), -1, EXTRACTOR)),
                writes=(Distillation, Operation, Generation),
                role=EXTRACTOR,
                due=first_round,
            ),
            *bank_stages(),
        ),
        initial={"consolidate": "initialize", update_name(method.owner(EXTRACTOR)): "initialize"},
        row_types=(Chat,),
        check_ready=check_ready,
    )


def first_round(method: Method, number: int) -> bool:
    """The file is read once."""
    return number == 1


def check_ready(method: Method, run_path: Path) -> None:
    """Raise BadInput or PromptTooLong where the prompt does not fit what it is for, or the model."""
    check_prompts(method.prompts)
    check_room(chat_of(method, EXTRACTOR), method.role(EXTRACTOR), {"distill": method.prompts["distill"]})


def read_chats(ctx: StageContext) -> None:
    """Every chat of the families' files."""
    found: list[Chat] = []
    for family in ctx.method.families:
        check_data(family)
        assert isinstance(family.environment, ChatsConfig)
        found += read(family.environment, family.name, ctx.round)
    ctx.write(Chat, found)


def count_parts(ctx: StageContext) -> int:
    """Batches: what a killed attempt has written of whole ones is kept."""
    return max(1, -(-len(_used(ctx)) // config_of(ctx.method).distill.batch))


def distill_part(ctx: StageContext, part: int) -> None:
    """One output per chat."""
    config, weights = config_of(ctx.method).distill, weights_of(ctx, EXTRACTOR)
    chats = _used(ctx)[part * config.batch : (part + 1) * config.batch]
    ctx.progress(0, len(chats))
    results: list[Distilled] = distill_wave(
        ctx.services.policy(EXTRACTOR, weights),
        [item_of(chat) for chat in chats],
        role=ctx.method.role(EXTRACTOR),
        prompt=ctx.method.prompts["distill"],
        own=ctx.method.own_prompts("distill"),
        config=config,
        seed_of=lambda distillation_id: ctx.seed(distillation_id),
        weights_digest=weights.weights_digest,
        round=ctx.round,
    )
    malformed = sum(each.distillation.verdict == "malformed" for each in results)
    ctx.progress(len(chats), len(chats), malformed=malformed)
    ctx.write(Distillation, [each.distillation for each in results])
    ctx.write(Operation, with_cuts(ctx, [operation for each in results for operation in each.operations]))
    ctx.write(Generation, [each.generation for each in results])


def _used(ctx: StageContext) -> list[Chat]:
    return [chat for chat in ctx.rows(Chat, READ) if chat.reason_code == OK]


def item_of(chat: Chat) -> DistillItem:
    """A chat as an episode with its turns, and what came of it."""
    system, seen, turns = list[str](), list[str](), list[Turn]()
    for message in json.loads(chat.messages):
        if message["role"] == "system" and not turns and not seen:
            system.append(message["content"])
        elif message["role"] != "assistant":
            seen.append(message["content"])
        else:
            turns.append(
                Turn(
                    episode_id=chat.chat_id, turn=len(turns), observation="\n".join(seen), output=message["content"],
                    action=message["content"], valid=True, feedback=None, generation_id="", first_token=0,
                    last_token=0, stop_reason="end_of_turn",
                )
            )  # fmt: skip
            seen = []
    episode = Episode(
        episode_id=chat.chat_id, round=chat.round, family=chat.family, group=0, member=0, environment_seed=0,
        guided=False, goal="\n".join(system) or _GOAL, success=bool(chat.success), reward=chat.reward or 0.0,
        turns=len(turns), invalid_actions=0, tokens_read=0, tokens_sampled=0,
        stop_reason="success" if chat.success else "failure", last_observation="\n".join(seen) or None, error=None,
        generation_ids=[],
    )  # fmt: skip
    return DistillItem(episode, tuple(turns), _OUTCOMES[chat.success])
