"""What an answer to a question earned (search-and-ask): the outcome of the episode that asked. Pure functions.

Off unless `rollout.search_and_ask.train_answers` is set. An answer is read once, by the episode that asked for it, so
it is scored once and trained once; several answers of an episode earn the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from crl.config import ExtractorObjective
from crl.credit.buffer import Earned
from crl.credit.uses import free_means, outcome, usable
from crl.records import Episode, Question


def answer_rewards(
    questions: Iterable[Question], episodes: Sequence[Episode], config: ExtractorObjective
) -> list[Earned]:
    """One reward per answer that was sampled for a usable episode, in the order of `questions`.

    The reward is the outcome, -1 to 1; `guided_minus_free` subtracts the mean of the group's unguided rollouts.
    A running usefulness belongs to an entry, so with it too an answer earns the outcome. An empty answer is a malformed
    output: it earns `malformed_reward`, and is left out where that is `none`.
    """
    outcomes = {episode.episode_id: outcome(episode) for episode in episodes if usable(episode)}
    unguided = free_means(episodes) if config.credit == "guided_minus_free" else {}
    earned = []
    for question in questions:
        if question.generation_id is None or question.episode_id not in outcomes:
            continue
        if question.answer is not None:
            reward = outcomes[question.episode_id] - unguided.get(question.episode_id, 0.0)
            earned.append(Earned(question.generation_id, reward, "answer"))
        elif config.malformed_reward != "none":
            earned.append(Earned(question.generation_id, float(config.malformed_reward), "malformed"))
    return earned
