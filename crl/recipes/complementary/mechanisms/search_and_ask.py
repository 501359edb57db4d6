"""Who answers the questions of a stage (search-and-ask): the bank is searched and the extractor reads what is found.

The question is the query, in the same scope as planning searches, and the most relevant entry answers it: exploration
belongs to training (`retrieval.diversify_evaluation` ranks by eq. 6 with the counters that planning ended with). No
question moves a counter. They would otherwise depend on which questions were asked before, in other
waves, so on how collecting is sharded; and the next round's plan would depend on it as well. A use that is asked for
earns the entry nothing either: experiences are scored by the episodes they guided. The answer itself may be trained
(`train_answers`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from crl.bank.retrieve import BankRetriever
from crl.bank.snapshot import Snapshot
from crl.config import ExtractorObjective, Method, SearchAndAskConfig
from crl.credit.buffer import Earned
from crl.credit.uses import chosen_by_episode, free_means, outcome, usable
from crl.errors import BadInput
from crl.extractor.answer import answer_all
from crl.extractor.outputs import SeedOf
from crl.protocols import Advice, Advisor, Inquiry
from crl.recipes.complementary.config import EXTRACTOR, config_of
from crl.recipes.complementary.mechanisms import Adds, Mechanism, MetricsAndAlarms, RowsByType, Sources, TruthShare
from crl.recipes.complementary.plan import counters, open_retriever, texts_of
from crl.records import Episode, Generation, Question, rows_with
from crl.rollout.play import PlayedEpisode
from crl.rounds.context import StageContext
from crl.rounds.health import tokens_of
from crl.rounds.impossible import answers_are_actions
from crl.rounds.weights import weights_of


class SearchAndAsk(Mechanism):
    """`rollout.search_and_ask`."""

    key = "rollout.search_and_ask"
    after_rollouts = False
    config: SearchAndAskConfig

    def problems(self, method: Method) -> Iterator[BadInput]:
        recipe = config_of(method)
        if answers_are_actions(method):
            yield BadInput(
                "the actor answers with a legal action and nothing else, so there would be no questions",
                expected="search_and_ask: none, or roles.actor.sampling.constrain: none",
                where="method.rollout.search_and_ask",
                next_step="change one of the two",
            )
        if recipe.has_bank and "ask" not in method.prompts:
            yield BadInput(
                "guided actors may ask, and there is no prompt for it",
                expected="a prompt `ask` in the prompt set",
                where="method.prompts.ask",
                next_step="add `ask` to the prompt file, or leave the setting out",
            )
        if self.config.train_answers and EXTRACTOR not in recipe.TRAINED:
            yield BadInput(
                f"recipe {recipe.kind} does not train the extractor, so none of its answers would be trained",
                expected="a recipe that trains the extractor",
                where="method.rollout.search_and_ask.train_answers",
                next_step="set it to false, or choose another recipe",
            )

    def adds(self, method: Method, at: Sources) -> Mapping[str, Adds]:
        return {
            "collect": Adds((at.weights(EXTRACTOR, at.lag),), (Question,)),
            "evaluate": Adds((at.weights(EXTRACTOR, 0),)),
        }

    def wave_rows(self, ctx: StageContext, played: Sequence[PlayedEpisode]) -> RowsByType:
        return {Question: [question for each in played for question in each.questions]}

    def earned(self, ctx: StageContext) -> list[Earned]:
        if not self.config.train_answers:
            return []
        objective = config_of(ctx.method).extractor_objective
        return answer_rewards(ctx.rows(Question, "collect"), ctx.rows(Episode, "collect"), objective)

    def metrics(self, ctx: StageContext, truth: TruthShare) -> MetricsAndAlarms:
        read, sampled = tokens_of(rows_with(ctx.table(Generation, "collect"), "kind", ["ask"]))
        return {"extractor_tokens_read": float(read), "extractor_tokens_sampled": float(sampled)}, {}


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
        self._counts = counters(ctx, "plan")
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
        top = chosen_by_episode(row for candidates in rows for row in candidates)
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
