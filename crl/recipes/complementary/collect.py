"""Stage `collect`: play the planned episodes, one wave per part; shards are whole waves.

Evaluation plays held-out tasks with the bank as they are played here (:func:`guided`).
"""

from __future__ import annotations

from collections.abc import Sequence

from crl.credit.uses import chosen_by_episode
from crl.protocols import Policy
from crl.recipes.complementary.mechanisms import Mechanism
from crl.recipes.complementary.mechanisms.actor_critic import critiqued_in_evaluation, verdicts_of, with_verdicts
from crl.recipes.complementary.mechanisms.search_and_ask import advisor_of
from crl.recipes.complementary.plan import counters, open_retriever, retrieve_all, texts_of
from crl.records import Retrieval, Task
from crl.rounds.context import StageContext
from crl.rounds.evaluate import Guided, seed_of_task
from crl.rounds.waves import planned_wave, play_with_actor, slots_of, write_played


def collect_part(ctx: StageContext, part: int, on: Sequence[Mechanism] = ()) -> None:
    """Play one wave with the actor of the round before."""
    tasks = planned_wave(ctx, part)
    wanted = {task.episode_id for task in tasks}
    chosen = chosen_by_episode(row for row in ctx.rows(Retrieval, "plan") if row.episode_id in wanted)
    digests = {row.content_digest for rows in chosen.values() for row in rows}
    bank = ctx.bank()
    texts = texts_of(ctx, bank, digests)
    slots = with_verdicts(slots_of(tasks, chosen, texts), verdicts_of(ctx))
    advisor = advisor_of(ctx, bank, seed_of=lambda question_id: ctx.seed("ask", question_id))
    played = play_with_actor(ctx, slots, advisor=advisor)
    write_played(ctx, played)
    for mechanism in on:
        for row_type, rows in mechanism.wave_rows(ctx, played).items():
            ctx.write(row_type, rows)


def guided(ctx: StageContext, tasks: Sequence[Task], policy: Policy, weights_digest: str) -> Guided:
    """Held-out tasks with the experiences that guide them: retrieved, critiqued and asked about as in training, and
    nothing is recorded of it. Verdicts are part of how this actor uses a bank: held-out success with the bank would
    otherwise measure an actor that is shown what it never was in training."""
    bank = ctx.bank()
    retriever = open_retriever(ctx, bank, counters(ctx, "plan"), training=False)
    chosen = chosen_by_episode(retrieve_all(ctx, retriever, tasks, advance=False))
    texts = texts_of(ctx, bank, {row.content_digest for rows in chosen.values() for row in rows})
    slots, tokens = critiqued_in_evaluation(
        ctx,
        policy,
        slots_of(tasks, chosen, texts),
        chosen,
        seed_of=lambda episode_id: seed_of_task(ctx.method, episode_id, "critique"),
        weights_digest=weights_digest,
    )
    advisor = advisor_of(ctx, bank, seed_of=lambda question_id: seed_of_task(ctx.method, question_id, "ask"))
    return Guided(slots, advisor, tokens)
