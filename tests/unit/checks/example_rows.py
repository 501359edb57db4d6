"""Rows of every record type that fit together: what the stages of one small round would write."""

from __future__ import annotations

import dataclasses
import hashlib

import crl.records as r
from crl.records import Row

SHA = hashlib.sha256(b"text").hexdigest()
N_EPISODES = 4


def _episode(index: int) -> str:
    return f"r0001-room-g0000-m{index:04d}"


def plan() -> dict[type[Row], list[Row]]:
    tasks = [
        r.Task(
            episode_id=_episode(i), round=1, family="room", group=0, member=i, environment_seed=7,
            stream="guided" if i < 2 else "free", goal="reach >", first_observation="a room", query="reach > a room",
        )
        for i in range(N_EPISODES)
    ]  # fmt: skip
    retrievals = [
        r.Retrieval(
            episode_id=_episode(i), round=1, bank_round=0, family="room", entry_id=f"e{rank}", content_digest=SHA,
            generation_id=f"x{rank}", rank=rank, similarity=0.9 - rank / 10, rank_score=-float(rank), count=0,
            recent=False, score=-float(rank), chosen=rank == 0,
        )
        for i in range(2)
        for rank in range(2)
    ]  # fmt: skip
    retrievals.append(dataclasses.replace(retrievals[0], episode_id=_episode(2), chosen=False, teaches=True))
    counts = [r.RetrievalCount(entry_id="e0", count=2, last_round=1)]
    masked = [r.Suppression(family="room", entry_id="e9", content_digest=SHA)]
    return {r.Task: tasks, r.Retrieval: retrievals, r.RetrievalCount: counts, r.Suppression: masked}


def _generation(name: str, role: str, kind: str, stage: str, spans: int = 1) -> r.Generation:
    mask = [0, 0, 1, 1] * spans
    return r.Generation(
        generation_id=name, round=1, stage=stage, role=role, kind=kind, weights_digest=SHA, temperature=1.0,
        token_ids=list(range(len(mask))), loss_mask=mask, logprobs=[-0.5 if m else 0.0 for m in mask],
        prompt="p", output="o", stop_reason="end_of_turn",
    )  # fmt: skip


def collect() -> dict[type[Row], list[Row]]:
    episodes, turns, generations = [], [], []
    for i in range(N_EPISODES):
        guided, success = i < 2, i % 2 == 0
        episodes.append(
            r.Episode(
                episode_id=_episode(i),
                round=1,
                family="room",
                group=0,
                member=i,
                environment_seed=7,
                guided=guided,
                entry_ids=["e0"] if guided else [],
                content_digests=[SHA] if guided else [],
                experiences=["go east"] if guided else [],
                goal="reach >",
                success=success,
                reward=float(success),
                turns=2,
                invalid_actions=1,
                tokens_read=4,
                tokens_sampled=4,
                stop_reason="success" if success else "turn_limit",
                last_observation="the end",
                error=None,
                generation_ids=[f"g{i}"],
            )
        )
        for turn in range(2):
            turns.append(
                r.Turn(
                    episode_id=_episode(i),
                    turn=turn,
                    observation="a room",
                    output="east",
                    valid=turn == 1,
                    action="east" if turn == 1 else None,
                    feedback=None if turn == 1 else "no such move",
                    generation_id=f"g{i}",
                    first_token=4 * turn + 2,
                    last_token=4 * turn + 4,
                    stop_reason="end_of_turn",
                )
            )
        generations.append(_generation(f"g{i}", "actor", "episode", "collect", spans=2))
    return {r.Episode: episodes, r.Turn: turns, r.Generation: generations}


def asking() -> dict[type[Row], list[Row]]:
    """A collect stage in which a guided and a free episode asked, and guided episodes are kept without experience."""
    rows = collect()
    turns = [
        dataclasses.replace(row, action=r.QUESTION, feedback="up!" if guided else "no", valid=guided)
        if row.turn == 0 and row.episode_id in (_episode(0), _episode(3))
        else row
        for row in rows[r.Turn]
        if isinstance(row, r.Turn)
        for guided in [row.episode_id == _episode(0)]
    ]
    episodes = [
        dataclasses.replace(row, invalid_actions=0) if row.member == 0 else row
        for row in rows[r.Episode]
        if isinstance(row, r.Episode)
    ]
    questions = [
        r.Question(
            question_id=f"q-{_episode(i)}-0", round=1, family="room", episode_id=_episode(i), turn=0,
            question="where?", reason_code="ok" if i == 0 else "free_episode", entry_id="e1" if i == 0 else None,
            content_digest=SHA if i == 0 else None, similarity=0.5 if i == 0 else None,
            generation_id="a0" if i == 0 else None, answer="up!" if i == 0 else None,
        )
        for i in (0, 3)
    ]  # fmt: skip
    contexts = [
        r.StrippedContext(
            episode_id=_episode(i), generation_id=f"g{i}", token_ids=[1] * len(mask), loss_mask=mask,
            removed_tokens=8 - len(mask),
        )
        for i, mask in ((0, [0, 1, 1]), (1, [0, 1, 1, 0, 1, 1]))
    ]  # fmt: skip
    return {
        r.Episode: [*episodes],
        r.Turn: [*turns],
        r.Generation: [*rows[r.Generation], _generation("a0", "extractor", "ask", "collect")],
        r.Question: [*questions],
        r.StrippedContext: [*contexts],
        r.TeacherContext: [
            r.TeacherContext(
                episode_id=_episode(2),
                generation_id="g2",
                entry_ids=["e0"],
                content_digests=[SHA],
                token_ids=[7, 8, 9],
                replaced_tokens=2,
            )
        ],
        r.RawReward: [
            r.RawReward(episode_id=row.episode_id, family="room", raw_reward=row.reward)
            for row in episodes
            if isinstance(row, r.Episode)
        ],
    }


def judged() -> dict[type[Row], list[Row]]:
    """A collect stage whose group a judge read at once, after an answer that gave no scores."""
    rows = collect()
    scores = [float(i % 2 == 0) for i in range(N_EPISODES)]
    episodes = [
        dataclasses.replace(row, reward_names=["judge"], reward_values=[score])
        for row, score in zip(rows[r.Episode], scores, strict=True)
        if isinstance(row, r.Episode)
    ]
    verdicts = [
        r.Verdict(
            verdict_id=f"0001-collect/room-g0000/v0.{attempt}", round=1, family="room", mode="group",
            episode_ids=[row.episode_id for row in episodes], reading=0, attempt=attempt, prompt="Score each answer.",
            output=output, scores=scores if attempt else [], reason_code="ok" if attempt else "no_score",
            weights_digest=SHA, model="a judge", tokens_read=9, tokens_sampled=4,
        )
        for attempt, output in enumerate(("All are fine.", "10, 0, 10, 0"))
    ]  # fmt: skip
    return {**rows, r.Episode: episodes, r.Verdict: verdicts}


def distill() -> dict[type[Row], list[Row]]:
    verdicts = ["add", "malformed"]
    distillations = [
        r.Distillation(
            distillation_id=f"d{i}", round=1, kind="distill", family="room", episode_id=_episode(i),
            guiding_entry_id="e0", source_entry_ids=[], generation_id=f"x{i}", format="lines",
            reason_code="ok" if verdict != "malformed" else "no_operation", verdict=verdict,
            operations=int(verdict != "malformed"), turns=2, turns_shown=2,
        )
        for i, verdict in enumerate(verdicts)
    ]  # fmt: skip
    operations = [
        r.Operation(
            operation_id="d0-o0", distillation_id="d0", generation_id="x0", round=1, index=0, kind="add",
            family="room", entry_id="e9", parents=[], episode_ids=[_episode(0)], text="text",
            embedder_cut=False,
        )
    ]  # fmt: skip
    generations = [_generation(f"x{i}", "extractor", "distill", "distill") for i in range(2)]
    alike = [r.Resemblance(content_digest=SHA, other_digest="0" * 64, similarity=0.97)]
    return {
        r.Distillation: distillations, r.Operation: operations, r.Generation: generations, r.Resemblance: alike,
    }  # fmt: skip


def consolidate() -> dict[type[Row], list[Row]]:
    bank = [
        r.BankEntry(
            entry_id="e9", family="room", content_digest=SHA, segment="bank/segments/a.parquet",
            embedding_file="bank/embeddings/b.parquet", version=1, created_round=1, updated_round=1, order=0,
            operation_id="d0-o0", distillation_id="d0", generation_id="x0", episode_ids=[_episode(0)], parents=[],
            embedder_cut=False,
        )
    ]  # fmt: skip
    texts = [r.BankText(content_digest=SHA, text="text")]
    events = [
        r.BankEvent(
            event_id="r0001-e0000", round=1, kind="add", entry_id="e9", family="room", operation_id="d0-o0",
            before_digest=None, after_digest=SHA, parents=[], reason=None, repeats=None,
        ),
        r.BankEvent(
            event_id="r0001-e0001", round=1, kind="evict", entry_id="e1", family="room", operation_id=None,
            before_digest=SHA, after_digest=None, parents=[], reason="capacity", repeats=None,
        ),
    ]  # fmt: skip
    gone = dataclasses.replace(bank[0], entry_id="e1", order=1)
    changes = [_change(bank[0], removed=False), _change(gone, removed=True)]
    snapshot = r.BankSnapshot(
        round=1, entries=1, changed=1, removed=1, base_round=1, changes_since_base=0, digest="0" * 64
    )
    return {
        r.BankEntry: bank, r.BankChange: changes, r.BankSnapshot: [snapshot], r.BankText: texts, r.BankEvent: events,
    }  # fmt: skip


def _change(entry: r.BankEntry, *, removed: bool) -> r.BankChange:
    columns = {field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)}
    return r.BankChange(**columns, removed=removed)


def initialize() -> dict[type[Row], list[Row]]:
    """Of an experiment that begins with the bank of another one."""
    imported = r.ImportedEntry(
        entry_id="other-r0003-e9", family="room", content_digest=SHA, generation_id="other-r0003-x0",
        source_experiment="other", source_round=3, source_snapshot=SHA, source_entry_id="e9", source_family="room",
        source_version=2, uses=0, mean_outcome=None, story="{}",
    )  # fmt: skip
    return {r.ImportedEntry: [imported]}


def approve() -> dict[type[Row], list[Row]]:
    row = r.Approval(round=1, decision="partly", person="Ada", reason=None, operations=3, rejected_operations=["d0-o0"])
    return {r.Approval: [row]}


def credit() -> dict[type[Row], list[Row]]:
    credits = [
        r.Credit(
            round=1, episode_id=_episode(i), entry_id="e0", content_digest=SHA, generation_id="x0",
            outcome=1.0 - 2 * i, free_mean=0.0, guided_minus_free=1.0 - 2 * i,
        )
        for i in range(2)
    ]  # fmt: skip
    scores = [r.EntryScore(entry_id="e0", content_digest=SHA, uses=2, mean_outcome=0.0, last_used_round=1)]
    buffer = [
        r.BufferItem(
            generation_id="x0", generation_round=0, generation_stage="distill", kind="used", entered_round=1,
            entered_order=0, uses=2, score_sum=0.0, train_count=1, last_trained_round=1, status="selected", reason=None,
        )
    ]  # fmt: skip
    samples = [
        _sample("s0", "actor", "grpo", "g0"),
        _sample("s1", "extractor", "cispo", "x0"),
    ]
    taught = _sample("s2", "actor", "reverse_kl", "g2")
    counts = sum(taught.loss_mask)
    samples.append(
        dataclasses.replace(
            taught, teacher_logprobs=[-0.5] * counts, top_ids=[[1, 2]] * counts, top_logprobs=[[-0.5, -2.0]] * counts
        )
    )
    return {r.Credit: credits, r.EntryScore: scores, r.BufferItem: buffer, r.Sample: samples}


def teach() -> dict[type[Row], list[Row]]:
    """Of two sequences, one that the teacher read and one that is too long for it."""
    rows = [
        r.TeacherLogprobs(
            episode_id=_episode(i), generation_id=f"g{i}", role="actor", weights_digest=SHA, tokens_read=9,
            teacher_logprobs=[] if reason else [-0.5, -0.1], top_ids=[] if reason else [[1, 2], [3, 4]],
            top_logprobs=[] if reason else [[-0.5, -1.0], [-0.1, -3.0]], reason_code=reason,
        )
        for i, reason in ((2, None), (3, "context_limit"))
    ]  # fmt: skip
    return {r.TeacherLogprobs: rows}


def behavior() -> dict[type[Row], list[Row]]:
    """Of a sequence whose own log-probabilities are a server's."""
    return {r.BehaviorLogprobs: [r.BehaviorLogprobs(generation_id="g0", weights_digest=SHA, logprobs=[0.0, -0.5])]}


def critique() -> dict[type[Row], list[Row]]:
    """The actor-critic: two experiences accepted, one rejected, one verdict that is none."""
    verdicts = (("accept", 1.0), ("refine", 0.5), ("reject", 0.0), ("malformed", None))
    rows = [
        r.Critique(
            episode_id=_episode(i), round=1, family="room", entry_id="e0", content_digest=SHA, generation_id=f"c{i}",
            success_rate=0.5, verdict=verdict, reason_code="ok" if score is not None else "no_verdict", score=score,
            text=None if verdict == "reject" else "go east",
        )
        for i, (verdict, score) in enumerate(verdicts)
    ]  # fmt: skip
    generations = [_generation(f"c{i}", "actor", "critic", "critique") for i in range(4)]
    return {
        r.Generation: generations,
        r.Critique: rows,
        r.SuccessRate: [r.SuccessRate(family="room", episodes=8, successes=4)],
    }


def reward() -> dict[type[Row], list[Row]]:
    """Credit where a use earns more than its outcome: the first by guided minus free, the third was rejected."""
    rows = [
        r.UseReward(
            round=1, episode_id=_episode(i), entry_id="e0", generation_id="x0", basis=basis, outcome=outcome,
            usefulness=0.2 if basis == "usefulness" else None, critic_score=score, reward=earned,
        )
        for i, (basis, outcome, score, earned) in enumerate(
            [("guided_minus_free", 1.0, 0.5, 1.5), ("usefulness", -1.0, None, 0.2), ("none", None, 0.0, 0.0)]
        )
    ]  # fmt: skip
    usefulness = [r.EntryUsefulness(entry_id="e0", content_digest=SHA, uses=2, usefulness=0.2)]
    utilities = [r.CandidateUtility(entry_id="e0", episodes=2, utility=-0.1)]
    effects = [
        r.TextEffect(family="room", content_digest=SHA, count=9.0, mean=-1.0, spread=0.5, suppressed=True),
        r.TextEffect(family="hall", content_digest=SHA, count=1.0, mean=0.5, spread=0.0, suppressed=False),
    ]
    return {
        r.Credit: credit()[r.Credit], r.UseReward: rows, r.EntryUsefulness: usefulness,
        r.CandidateUtility: utilities, r.TextEffect: effects,
    }  # fmt: skip


def trial() -> dict[type[Row], list[Row]]:
    """Two layouts, played without a note and with two of them: one is admitted, one not; a third text is not tried."""
    texts = {"a": hashlib.sha256(b"a").hexdigest(), "b": hashlib.sha256(b"b").hexdigest(), "c": SHA}
    episodes, turns, generations = [], [], []
    for layout in range(2):
        for note in (None, "a", "b"):
            place, success = len(episodes), note == "a"
            episodes.append(
                r.Episode(
                    episode_id=f"t{place}", round=1, family="room", group=layout, member=place, environment_seed=layout,
                    stream="trial", guided=note is not None, entry_ids=[] if note is None else [f"e-{note}"],
                    content_digests=[] if note is None else [texts[note]],
                    experiences=[] if note is None else [note], goal="reach >",
                    success=success, reward=float(success), turns=1, invalid_actions=0, tokens_read=2, tokens_sampled=2,
                    stop_reason="success" if success else "failure", last_observation="@>", error=None,
                    generation_ids=[f"tg{place}"],
                )
            )  # fmt: skip
            turns.append(
                r.Turn(
                    episode_id=f"t{place}", turn=0, observation="@>", output="east", action="east", valid=True,
                    feedback=None, generation_id=f"tg{place}", first_token=2, last_token=4, stop_reason="end_of_turn",
                )
            )  # fmt: skip
            generations.append(_generation(f"tg{place}", "actor", "episode", "trial"))
    wins = {"a": 2, "b": 0}
    trials = [
        r.Trial(
            operation_id=f"o-{note}", round=1, family="room", entry_id=f"e-{note}", content_digest=texts[note],
            generation_id=f"x-{note}", tried_round=1 if note in wins else None, pairs=2 if note in wins else 0,
            wins_with=wins.get(note, 0), wins_without=0, difference=wins[note] / 2 if note in wins else None,
            admitted=note == "a", reason_code={"a": "ok", "b": "failed_trial", "c": "untried"}[note],
        )
        for note in texts
    ]  # fmt: skip
    results = [
        r.TrialResult(family="room", content_digest=texts[note], round=1, pairs=2, wins_with=count, wins_without=0)
        for note, count in wins.items()
    ]
    return {
        r.Trial: trials, r.TrialResult: results, r.Episode: episodes, r.Turn: turns, r.Generation: generations,
    }  # fmt: skip


def _sample(name: str, role: str, objective: str, generation: str) -> r.Sample:
    return r.Sample(
        sample_id=name, round=1, role=role, objective=objective, source="0001/collect", generation_id=generation,
        reward=1.0, advantage=0.5, weight=0.5, temperature=1.0, token_ids=[1, 2], loss_mask=[0, 1],
        logprobs=[0.0, -0.5],
    )  # fmt: skip


def update() -> dict[type[Row], list[Row]]:
    weights = [
        r.Weights(
            role="actor", round=1, updates=1, source="tiny", base_digest=SHA,
            checkpoint="rounds/0001/update_actor/checkpoint", weights_digest=SHA,
        )
    ]  # fmt: skip
    return {r.Weights: weights, r.Metric: [r.Metric(round=1, stage="update_actor", name="loss", value=0.1, alarm=None)]}


def evaluate() -> dict[type[Row], list[Row]]:
    rows = [
        r.Evaluation(
            evaluation_id=f"v{i}", round=1, condition=condition, family="room", environment_seed=9,
            guided=condition == "with_bank",
            entry_ids=["e9"] if condition == "with_bank" else [], success=False, reward=0.0, turns=2, invalid_actions=1,
            tokens_read=0 if condition == "random" else 4, tokens_sampled=0 if condition == "random" else 4,
            stop_reason="turn_limit", actions=["east", ""],
        )
        for i, condition in enumerate(("with_bank", "without_bank", "random"))
    ]  # fmt: skip
    return {r.Evaluation: rows}


STAGES = (
    initialize,
    plan,
    critique,
    collect,
    asking,
    teach,
    behavior,
    judged,
    distill,
    approve,
    consolidate,
    credit,
    reward,
    trial,
    update,
    evaluate,
)
