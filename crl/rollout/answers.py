"""The answers an actor may give, as a tree of token ids (`sampling.constrain: actions`).

Each legal action is written as the chat format writes an answer, with the end of its turn, so what is sampled is what a
demonstration of the action would be, id for id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from crl.errors import BadInput
from crl.protocols import Actions, Answers, Chat
from crl.rollout.actions import named_actions

NO_ACTION, LONG_ACTION = "environment_no_action", "environment_action_too_long"
_ADVICE = {
    NO_ACTION: "mend the environment: in every state that is not final it names an action",
    LONG_ACTION: "raise max_new_tokens, or shorten the names of the actions",
}


class Flaw(NamedTuple):
    """Why an actor cannot answer: the reason code of its episode, and the same in words."""

    code: str
    details: str


class AnswerTrees:
    """Trees of the answers of one policy's chat format; a set of actions is encoded once."""

    def __init__(self, chat: Chat, longest: int) -> None:
        """`longest` is the most ids that an answer may have (`max_new_tokens`)."""
        self._chat, self._longest = chat, longest
        self._trees: dict[tuple[str, ...], Answers] = {}

    def of(self, actions: Actions) -> Answers:
        """The tree of some actions. Raises BadInput where there is none, or one is longer than a turn may be."""
        if (flaw := self.flaw(actions)) is not None:
            raise BadInput(flaw.details, where="method.roles.actor.sampling", next_step=_ADVICE[flaw.code])
        return self._trees[named_actions(actions)]

    def flaw(self, actions: Actions) -> Flaw | None:
        """Why there is no tree of some actions; None where there is one."""
        key = named_actions(actions)
        if not key:
            return Flaw(NO_ACTION, "the environment names no legal action, so there is nothing to answer with")
        if key in self._trees:
            return None
        answers = {action: self._chat.answer(action) for action in key}
        action, ids = max(answers.items(), key=lambda each: len(each[1]))
        if len(ids) > self._longest:
            told = f"the action {action!r:.200} takes {len(ids)} tokens with the end of its turn"
            return Flaw(LONG_ACTION, f"{told}; a turn has at most {self._longest} (sampling.max_new_tokens)")
        self._trees[key] = self._grown(answers.values())
        return None

    @staticmethod
    def _grown(answers: Iterable[Sequence[int]]) -> Answers:
        root: dict[int, Any] = {}
        for ids in answers:
            node = root
            for index in ids:
                node = node.setdefault(index, {})
        return root
