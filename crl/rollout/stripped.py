"""A guided episode's tokens as its free version would have had them: the contexts of self-distillation.

What is left out: the experience and the offer to ask in the first prompt, every turn that asked a question (answered or
refused), and what was replied to it. What stays is copied id for id from the token record; only the first prompt is
tokenized, by the function that opens a free episode. A reply that no own turn follows is left out as well: the context
ends, as a free episode's record does, with what the actor wrote.
"""

from __future__ import annotations

from crl.config import Method
from crl.protocols import Chat
from crl.records import QUESTION, StrippedContext
from crl.rollout.play import PlayedEpisode
from crl.rollout.prompts import opened


def stripped_context(chat: Chat, played: PlayedEpisode, method: Method) -> StrippedContext:
    """The stripped context of one guided episode; `chat` is the format that it was played with."""
    record, start = played.generation, played.start
    prompt = method.prompts_of(played.episode.family)["actor"]
    _, token_ids = opened(chat, prompt, start, experience=None, placement=method.rollout.placement)
    loss_mask = [0] * len(token_ids)
    choices: list[list[int]] = []
    replied: list[int] = []  # what the actor read after its last own turn
    for place, turn in enumerate(played.turns):
        if turn.action == QUESTION:
            continue
        written = record.token_ids[turn.first_token : turn.last_token]
        token_ids += [*replied, *written]
        mask = record.loss_mask[turn.first_token : turn.last_token]
        loss_mask += [0] * len(replied) + mask
        if record.choices:
            first = sum(record.loss_mask[: turn.first_token])
            choices += record.choices[first : first + sum(mask)]
        following = played.turns[place + 1 :]
        replied = record.token_ids[turn.last_token : following[0].first_token] if following else []
    return StrippedContext(
        episode_id=played.episode.episode_id,
        generation_id=record.generation_id,
        token_ids=token_ids,
        loss_mask=loss_mask,
        choices=choices,
        removed_tokens=len(record.token_ids) - len(token_ids),
    )
