"""What a turn reads of the earlier ones: the setting `roles.actor.history`.

An episode keeps of each turn the ids that asked for it and the ids that it wrote, as later prompts have them. A prompt
is the sequence so far and the reply to its last turn; or it is put together anew of kept ids: all turns without their
thoughts, or the opening and the last turns. Where it does not begin with the sequence so far, a new sequence begins.
Ids are copied and left out, never made: what was sampled is never tokenized again.

Where the template keeps thoughts between tool calls, they are left out when a user speaks again.

A summary is a turn of its own, whose action is `SUMMARY`. While it is written the environment's last step is held back;
then the opening, the summary and that step are the next prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from crl.config.roles import SummaryHistory, WindowHistory
from crl.protocols import Chat
from crl.records import QUESTION
from crl.rollout.live import Exchange, LiveEpisode, LiveSequence, sequence_id
from crl.text.outputs import prompt_text


def remember(row: LiveEpisode, chat: Chat, wrote: Sequence[int], text: str, call: str | None) -> None:
    """Keep a turn that is over. `call`: the tool that it called, whose result comes next."""
    row.exchanges.append(Exchange(row.asked, row.asked_text, list(wrote), text))
    if row.history != "strip_thoughts" or (call is not None and chat.keeps_thoughts(call)):
        return
    for place in range(row.stripped, len(row.exchanges)):
        asked, kept = chat.without_thoughts(row.exchanges[place].asked, row.exchanges[place].wrote)
        row.exchanges[place] = Exchange(asked, row.exchanges[place].asked_text, kept, chat.decode(kept))
    row.stripped = len(row.exchanges)


def following(row: LiveEpisode, reply: Sequence[int], room: int) -> tuple[int, list[int]] | None:
    """The next prompt, in at most `room` tokens, and the first turn that it shows; None where none fits."""
    last = len(row.exchanges) - 1
    if row.held is not None:  # the turn was a summary
        firsts = [last]
    elif isinstance(row.history, WindowHistory):
        firsts = [row.first, *range(max(row.first, last - row.history.window) + 1, last + 1)]
    else:
        firsts = [row.first]
    prompts = ((first, _prompt(row.exchanges[0].asked, _replied(row.exchanges[first:], reply))) for first in firsts)
    return next(((first, ids) for first, ids in prompts if len(ids) <= room), None)


def is_summary_due(row: LiveEpisode, reply: Sequence[int], new_tokens: int) -> bool:
    """Whether the actor sums up before it reads a reply: with its next turn the sequence would be too long."""
    if not isinstance(row.history, SummaryHistory) or row.held is not None:
        return False
    return len(row.sequence.token_ids) + len(reply) + new_tokens > row.history.summarize.at


def begin_sequence(row: LiveEpisode, first: int, token_ids: list[int], reply: list[int], text: str, stage: str) -> None:
    """Begin a sequence with a prompt of :func:`following`. `text`: the reply's."""
    opening, shown = row.sequences[0], row.exchanges[first:]
    unsaid = len(opening.first_prompt) - len(row.exchanges[0].asked)
    own = [(each, replied) for (each, replied), turn in zip(_replied(shown, reply), row.turns[first:], strict=True)
           if turn.action != QUESTION]  # fmt: skip

    def prompt_with(experience: str | None) -> list[int]:
        other = opening.prompt_with(experience)
        return _prompt(other[: len(other) - unsaid], own)

    texts = [*(each.asked_text for each in shown[1:]), text]
    messages = [
        message
        for each, replied in zip(shown, texts, strict=True)
        for message in ({"role": "assistant", "content": each.text}, {"role": "user", "content": replied})
    ]
    row.sequences.append(
        LiveSequence(
            generation_id=sequence_id(row.slot.task.episode_id, stage, len(row.sequences)),
            prompt=f"{opening.prompt}\n\n{prompt_text(messages)}",
            prompt_with=prompt_with,
            token_ids=token_ids,
        )
    )


_Replied = tuple[Exchange, Sequence[int]]
"""A turn, and the ids of the reply to it."""


def _replied(exchanges: Sequence[Exchange], reply: Sequence[int]) -> list[_Replied]:
    return list(zip(exchanges, [*(each.asked for each in exchanges[1:]), reply], strict=True))


def _prompt(opening: Sequence[int], replied: Sequence[_Replied]) -> list[int]:
    return [*opening, *chain.from_iterable((*each.wrote, *reply) for each, reply in replied)]
