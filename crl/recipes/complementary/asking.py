"""Who answers the questions of a stage (search-and-ask): the bank is searched and the extractor reads what is found.

The question is the query, in the same scope as planning searches, and the most relevant entry answers it: exploration
belongs to training (`retrieval.diversify_evaluation` ranks by eq. 6 with the counters that planning ended with). No
question moves a counter. They would otherwise depend on which questions were asked before, in other
waves, so on how collecting is sharded; and the next round's plan would depend on it as well. A use that is asked for
earns the entry nothing either: experiences are scored by the episodes they guided. The answer itself may be trained
(`train_answers`).
"""

from __future__ import annotations

from collections.abc import Sequence

from crl.bank.retrieve import BankRetriever
from crl.bank.snapshot import Snapshot
from crl.credit.uses import shown_by_episode
from crl.extractor.answer import answer_all
from crl.extractor.outputs import SeedOf
from crl.protocols import Advice, Advisor, Inquiry
from crl.recipes.complementary.bank_access import open_retriever, texts_of
from crl.recipes.complementary.config import config_of
from crl.records import RetrievalCount
from crl.rounds.context import StageContext
from crl.rounds.weights import weights_of


def advisor_of(ctx: StageContext, bank: Snapshot, *, seed_of: SeedOf) -> Advisor | None:
    """Who answers the guided episodes of a stage; None where they may not ask, or where no entry could guide them.

    `bank` is the one that the stage reads. `seed_of` gives the random stream of a question id.
    """
    if ctx.method.rollout.search_and_ask is None or not len(bank):
        return None
    return _BankAdvisor(ctx, bank, seed_of)


class _BankAdvisor:
    """Answers from one bank snapshot. Index and model are made ready by the first question."""

    def __init__(self, ctx: StageContext, bank: Snapshot, seed_of: SeedOf) -> None:
        self._ctx, self._bank, self._seed_of = ctx, bank, seed_of
        self._counts = ctx.rows(RetrievalCount, "plan")
        self._weights = weights_of(ctx, "extractor")
        self._retriever: BankRetriever | None = None

    def advise(self, inquiries: Sequence[Inquiry]) -> list[Advice]:
        """The extractor's answer from the top entry of each question."""
        ctx = self._ctx
        if self._retriever is None:
            self._retriever = open_retriever(ctx, self._bank, self._counts, training=False)
        embedder = ctx.services.embedder()
        asked = [(each.episode_id, each.family) for each in inquiries]
        with ctx.timed("retrieval", len(asked)):
            vectors_QD = embedder.embed_queries([each.question for each in inquiries])
            rows = self._retriever.retrieve_many(asked, vectors_QD, advance=False)
        top = shown_by_episode(row for candidates in rows for row in candidates)
        found = [top[each.episode_id][0] if each.episode_id in top else None for each in inquiries]
        texts = texts_of(ctx, self._bank, {row.content_digest for row in found if row is not None})
        known = [(each, row) for each, row in zip(inquiries, found, strict=True) if row is not None]
        policy = ctx.services.policy("extractor", self._weights)
        with ctx.timed("answers", len(known)):
            answered = answer_all(
                policy,
                [each for each, _ in known],
                [texts[row.content_digest] for _, row in known],
                prompt=ctx.method.prompts["ask"],
                own=ctx.method.own_prompts("ask"),
                role=ctx.method.role("extractor"),
                batch=config_of(ctx.method).distill.batch,
                seed_of=self._seed_of,
                weights_digest=self._weights.weights_digest,
                round=ctx.round,
                stage=ctx.stage.name,
            )
        answers = iter(answered)
        advice = []
        for row in found:
            if row is None:
                advice.append(Advice("no_entry"))
                continue
            answer = next(answers)
            advice.append(
                Advice(
                    answer.reason_code, answer.text, row.entry_id, row.content_digest, row.similarity, answer.generation
                )
            )
        return advice
