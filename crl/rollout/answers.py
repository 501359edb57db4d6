"""The answers an actor may give, as a tree of token ids (`sampling.constrain: actions`).

Each legal action is written as the chat format writes an answer, with the end of its turn, so what is sampled is what a
demonstration of the action would be, id for id.
"""

from __future__ import annotations

from typing import Any

from crl.errors import BadInput
from crl.protocols import Actions, Answers, Chat
from crl.rollout.actions import named_actions


class AnswerTrees:
    """Trees of the answers of one policy's chat format; a set of actions is encoded once."""

    def __init__(self, chat: Chat, longest: int) -> None:
        """`longest` is the most ids that an answer may have (`max_new_tokens`)."""
        self._chat, self._longest = chat, longest
        self._trees: dict[tuple[str, ...], Answers] = {}

    def of(self, actions: Actions) -> Answers:
        """The tree of some actions. Raises BadInput where there is none, or one is longer than a turn may be."""
        key = named_actions(actions)
        if key not in self._trees:
            self._trees[key] = self._grown(key)
        return self._trees[key]

    def _grown(self, actions: tuple[str, ...]) -> Answers:
        if not actions:
            raise BadInput(
                "the environment names no legal action, so there is nothing to answer with",
                expected="at least one legal action in every state that is not final",
                where="method.roles.actor.sampling.constrain",
                next_step="set constrain to none, or mend the environment",
            )
        root: dict[int, Any] = {}
        for action in actions:
            ids = self._chat.answer(action)
            if len(ids) > self._longest:
                raise BadInput(
                    f"the action {action!r} takes {len(ids)} tokens with the end of its turn",
                    expected=f"at most {self._longest}, the new tokens of a turn",
                    where="method.roles.actor.sampling.max_new_tokens",
                    next_step=f"raise max_new_tokens to {len(ids)} or more",
                )
            node = root
            for index in ids:
                node = node.setdefault(index, {})
        return root
