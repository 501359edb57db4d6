"""How held-out tasks are played with the bank: found, judged and asked as in training, and nothing is recorded of it.

Retrieval moves no counter, verdicts and answers are no rows. Verdicts are part of how this actor uses a bank: held-out
success with the bank would otherwise measure an actor that is shown what it never was in training.
"""

from __future__ import annotations

from collections.abc import Sequence

from crl.credit.credit import shown_by_episode
from crl.protocols import Policy
from crl.recipes.complementary.bank_access import open_retriever, retrieve_all, texts_of
from crl.recipes.complementary.mechanisms.actor_critic import judged_in_evaluation
from crl.recipes.complementary.mechanisms.search_and_ask import advisor_of
from crl.records import RetrievalCount, Task
from crl.rounds.context import StageContext
from crl.rounds.evaluate import Guided, seed_of_task
from crl.rounds.waves import slots_of


def guided(ctx: StageContext, tasks: Sequence[Task], policy: Policy, weights_digest: str) -> Guided:
    """The tasks of a wave with the experiences that guide them."""
    bank = ctx.bank()
    retriever = open_retriever(ctx, bank, ctx.rows(RetrievalCount, "plan"), training=False)
    chosen = shown_by_episode(retrieve_all(ctx, retriever, tasks, advance=False))
    texts = texts_of(ctx, bank, {row.content_digest for rows in chosen.values() for row in rows})
    slots, tokens = judged_in_evaluation(
        ctx,
        policy,
        slots_of(tasks, chosen, texts),
        chosen,
        seed_of=lambda episode_id: seed_of_task(ctx.method, episode_id, "judge"),
        weights_digest=weights_digest,
    )
    advisor = advisor_of(ctx, bank, seed_of=lambda question_id: seed_of_task(ctx.method, question_id, "ask"))
    return Guided(slots, advisor, tokens)
