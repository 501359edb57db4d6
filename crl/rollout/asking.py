"""Search-and-ask: what becomes of the questions that actors ask while they play.

Only an episode that an experience guides may ask, and at most `uses` times: what counts as a use is a question that is
handed on. A question spends a turn. The environment receives a turn without an action, which leaves its state as it
is and counts against its own turn limit: no episode is longer for asking, whatever the environment.

What the actor reads next is the answer, or why there is none, in front of the observation that it had already, with
its numbers as they are now: a count of the turns that are left has gone on.

| reason code | the question |
|---|---|
| ok | was answered |
| free_episode | came from an episode that nothing guides, or where nobody answers |
| uses_spent | came after `uses` others |
| empty, too_long | has no words, or more than `max_characters` characters |
| episode_over | took the last turn, so nobody would have read an answer |
| no_entry | has no entry above the threshold of retrieval |
| prompt_too_long | does not fit the extractor's context |
| no_answer | was answered with nothing |
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from crl.config import RolloutConfig, SearchAndAskConfig
from crl.protocols import Advice, Advisor, Inquiry, Step
from crl.records import Question
from crl.rollout.actions import parse_question
from crl.rollout.live import LiveEpisode

_REFUSALS = {
    "free_episode": "Questions cannot be asked here.",
    "uses_spent": "No more questions can be asked.",
    "empty": "That asks nothing.",
    "too_long": "That question is too long.",
    "episode_over": "The episode is over.",
    "no_entry": "Nothing is known about that.",
}
_UNANSWERED = "There is no answer to that."
_NUMBER = re.compile(r"\d+")


def questions_of(
    rows: Sequence[LiveEpisode], texts: Mapping[int, str], config: RolloutConfig, *, thinking: bool = False
) -> dict[int, Inquiry]:
    """Which rows ask instead of acting in a turn, and what; `texts` is what each wrote. None without search-and-ask.

    `thinking`: their prompts began a thought.
    """
    if config.search_and_ask is None:
        return {}
    found = {}
    for index, text in texts.items():
        row = rows[index]
        question = parse_question(text, row.actions, config.action_format, thinking=thinking)
        if question is not None:
            task = row.slot.task
            found[index] = Inquiry(
                question_id=f"q-{task.episode_id}-{len(row.questions)}",
                episode_id=task.episode_id,
                family=task.family,
                goal=task.goal,
                observation=row.observation,
                question=question,
            )
    return found


def advise(
    rows: Sequence[LiveEpisode],
    inquiries: Mapping[int, Inquiry],
    steps: Mapping[int, Step],
    config: RolloutConfig,
    advisor: Advisor | None,
) -> dict[int, Advice]:
    """What each inquiry is answered. `steps`: how the environments took the turn without an action."""
    if config.search_and_ask is None or not inquiries:
        return {}
    found, handed_on = {}, []
    for index, inquiry in inquiries.items():
        reason = _refusal(rows[index], inquiry.question, config.search_and_ask, over=steps[index].done)
        if reason is not None:
            found[index] = Advice(reason)
        else:
            rows[index].handed_on += 1
            handed_on.append(index)
    if handed_on and advisor is not None:
        answers = advisor.advise([inquiries[index] for index in handed_on])
        found.update(zip(handed_on, answers, strict=True))
    return found


def record(row: LiveEpisode, step: Step, inquiry: Inquiry, advice: Advice) -> Step:
    """Keep a question and its answer with the episode. Returns the turn as the actor is to see it: the answer, or why
    there is none, and the observation that it had already; it counts as legal if it was answered."""
    row.questions.append(
        Question(
            question_id=inquiry.question_id,
            round=row.slot.task.round,
            family=inquiry.family,
            episode_id=inquiry.episode_id,
            turn=len(row.turns),
            question=inquiry.question,
            reason_code=advice.reason_code,
            entry_id=advice.entry_id,
            content_digest=advice.content_digest,
            similarity=advice.similarity,
            generation_id=None if advice.generation is None else advice.generation.generation_id,
            answer=advice.answer,
        )
    )
    if advice.generation is not None:
        row.answers.append(advice.generation)
    said = advice.answer if advice.answer is not None else _REFUSALS.get(advice.reason_code, _UNANSWERED)
    legal = advice.reason_code == "ok"
    observation = _with_numbers_of(step.observation, row.observation)
    return replace(step, observation=observation, actions=row.actions, legal=legal, feedback=said)


def _with_numbers_of(now: str, before: str) -> str:
    """The observation of before a question, unless what is seen now differs from it in nothing but numbers: some
    environments show less after a turn without an action than after the last one with one."""
    return now if _NUMBER.sub("", now) == _NUMBER.sub("", before) else before


def _refusal(row: LiveEpisode, question: str, config: SearchAndAskConfig, *, over: bool) -> str | None:
    """Reason code of a question that is not handed on; None for one that is."""
    if not row.may_ask:
        return "free_episode"
    if not question:
        return "empty"
    if len(question) > config.max_characters:
        return "too_long"
    if row.handed_on >= config.uses:
        return "uses_spent"
    return "episode_over" if over else None
