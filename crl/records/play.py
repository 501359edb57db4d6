"""Rows of playing: what was planned, retrieved, played, sampled and evaluated."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Annotated as A
from typing import ClassVar

from crl.records.base import CHOICES, FLOATS, MASK, TOKEN_ROWS, TOKENS, Row, Rules, together

GUIDED, FREE = "guided", "free"
"""Streams of Complementary RL: rollouts of a group that are shown an experience, and unguided ones."""
SYNTHETIC = "synthetic"
"""Stream of rollouts in a model of the environment, which itself says what is won: a condition of its own in every
count."""
_EPISODE_STOPS = ("success", "failure", "turn_limit", "context_limit", "error")
_QUESTION_REASONS = (
    "ok", "free_episode", "uses_spent", "empty", "too_long", "episode_over", "no_entry", "prompt_too_long", "no_answer",
)  # fmt: skip

SAMPLER, SERVER, TRAINER = "sampler", "server", "trainer"
"""Who computed the log-probabilities of a token record: see its column `logprobs_by`."""
UNSCORED = "judge_"
"""How the reason code of an episode begins that was played to its end, and got no reward from its judge."""
_BROKE = f"stop_reason = 'error' AND NOT starts_with(error, '{UNSCORED}')"
_REWARD_PARTS = {
    "every part of a reward has its name, and is finite": (
        "len(reward_names) = len(reward_values) AND len(list_distinct(reward_names)) = len(reward_names)"
        " AND len(list_filter(reward_values, lambda each: NOT isfinite(each))) = 0"
    ),
}


def shown_text(experiences: Sequence[str]) -> str | None:
    """What an actor reads of the experiences that guide it: one as it is, several with their numbers; None of none."""
    return numbered(experiences) if len(experiences) > 1 else next(iter(experiences), None)


def numbered(texts: Sequence[str]) -> str:
    """Texts under each other, each with its number. Further lines of one are indented: none looks like another."""
    return "\n".join(f"{number}. {text}".replace("\n", "\n   ") for number, text in enumerate(texts, start=1))


def _one_in_each(column: str, group: str) -> str:
    return f"min({column}) OVER (PARTITION BY {group}) = max({column}) OVER (PARTITION BY {group})"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task(Row):
    """One planned episode: a slot of a group."""

    table: ClassVar[str] = "tasks"
    episode_id: A[str, "r<round>-<family>-g<group>-m<member>; evaluation episodes have their own ids"]
    round: A[int, "round number; 0 prepares, training starts at 1"]
    family: A[str, "task family, set by the config"]
    group: A[int, "group index over all families of the round"]
    member: A[int, "index within the group, 0 to K-1"]
    environment_seed: A[int, "seed of the environment; shared by the group"]
    stream: A[str, "guided, free, or another of the recipe's, as planned; guided without an experience is played free"]
    goal: A[str, "what the environment asks for"]
    first_observation: A[str, "text of the first observation"]
    query: A[str, "retrieval query: goal and first observation"]
    task_digest: A[str, "SHA-256 of the level's content, the same under any seed; empty: unknown"] = ""

    added: ClassVar[tuple[str, ...]] = ("task_digest",)
    rules: ClassVar[Rules] = Rules(
        key=("episode_id",),
        filled=("episode_id", "family", "query", "stream"),
        unique=(("group", "member"),),
        ranges={"environment_seed": (0, None), "round": (0, None), "group": (0, None), "member": (0, None)},
        rows={
            "a group shares one environment seed": _one_in_each("environment_seed", '"group"'),
            "a group is of one family": _one_in_each("family", '"group"'),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval(Row):
    """One candidate of one retrieval, with every term of eq. 6."""

    table: ClassVar[str] = "retrievals"
    added: ClassVar[tuple[str, ...]] = ("teaches",)
    episode_id: A[str, "episode the experience was retrieved for"]
    round: A[int, "round of the episode"]
    bank_round: A[int, "round of the bank snapshot that was searched"]
    family: A[str, "task family of the episode"]
    entry_id: A[str, "candidate entry"]
    content_digest: A[str, "SHA-256 of the candidate's text at that snapshot"]
    generation_id: A[str, "extractor output that wrote this text"]
    rank: A[int, "rank by similarity, 0 is the nearest"]
    similarity: A[float, "cosine of query and entry"]
    rank_score: A[float, "s_rank of eq. 6"]
    count: A[int, "c of eq. 6: retrievals of the entry before this one"]
    recent: A[bool, "whether the entry was retrieved inside the recency window"]
    score: A[float, "s of eq. 6"]
    chosen: A[bool, "whether it guides the episode; among several, the highest score comes first"]
    teaches: A[bool, "whether only the teacher of a free episode reads it"] = False

    rules: ClassVar[Rules] = Rules(
        key=("episode_id", "entry_id"),
        filled=("episode_id", "entry_id", "generation_id"),
        sha256=("content_digest",),
        unique=(("episode_id", "rank"),),
        ordered=(("round", "bank_round"),),
        ranges={"similarity": (-1.0001, 1.0001), "rank": (0, None), "count": (0, None)},
        rows={
            "every term of eq. 6 is finite": "isfinite(similarity) AND isfinite(rank_score) AND isfinite(score)",
            "at most 16 candidates of an episode are chosen": (  # the largest top_k
                "sum(chosen::INT) OVER (PARTITION BY episode_id) <= 16"
            ),
        },
        between={
            "a retrieval belongs to a planned episode and has its family": (
                "SELECT r.row, r.episode_id AS id FROM retrievals r LEFT JOIN tasks t USING (episode_id) "
                "WHERE t.episode_id IS NULL OR t.family <> r.family"
            ),
            "an experience is chosen for guided episodes only": (
                "SELECT r.row, r.episode_id AS id FROM retrievals r JOIN tasks t USING (episode_id) "
                "WHERE r.chosen AND t.stream <> 'guided'"
            ),
            "what a teacher reads is retrieved for free episodes only": (
                "SELECT r.row, r.episode_id AS id FROM retrievals r JOIN tasks t USING (episode_id) "
                "WHERE r.teaches AND t.stream = 'guided'"
            ),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalCount(Row):
    """Cumulative retrieval counters after a round was planned, derived from the retrieval rows."""

    table: ClassVar[str] = "retrieval_counts"
    entry_id: A[str, "bank entry"]
    count: A[int, "times chosen so far, evaluation excluded"]
    last_round: A[int, "round of the last choice"]

    rules: ClassVar[Rules] = Rules(
        key=("entry_id",),
        filled=("entry_id",),
        ranges={"count": (0, None)},
        rows={"an entry that was chosen has a round": "count = 0 OR last_round >= 0"},
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Episode(Row):
    """One played episode."""

    table: ClassVar[str] = "episodes"
    episode_id: A[str, "as planned"]
    round: A[int, "round number"]
    family: A[str, "task family"]
    group: A[int, "group index of the round"]
    member: A[int, "index inside the group"]
    environment_seed: A[int, "seed of the environment"]
    stream: A[str, "which rollouts of the group it is compared with: guided, free, or another of the recipe's"] = ""
    guided: A[bool, "whether an experience was in the prompt"]
    entry_ids: A[list[str], "entries that guided the episode, in the order shown; none for a free episode"] = (
        dataclasses.field(default_factory=list)
    )
    content_digests: A[list[str], "versions of these entries"] = dataclasses.field(default_factory=list)
    experiences: A[list[str], "texts of these entries, as shown; several are numbered in the prompt"] = (
        dataclasses.field(default_factory=list)
    )
    goal: A[str, "what the environment asked for"]
    success: A[bool, "whether the task was solved, as the environment says"]
    reward: A[float, "outcome reward by the family's convention (raw_rewards has the environment's)"]
    turns: A[int, "turns played"]
    invalid_actions: A[int, "turns whose action did not parse or was illegal"]
    tokens_read: A[int, "tokens the actor read, once per sequence: prompt, observations, repeated history"]
    tokens_sampled: A[int, "tokens the actor wrote"]
    stop_reason: A[str, "success, failure, turn_limit, context_limit or error"]
    last_observation: A[str | None, "what the last action did; null: the environment broke"]
    error: A[
        str | None,
        "reason code of a broken episode: judge_…: the judge gave no reward (see verdicts); "
        "prompt_too_long: the first prompt did not fit; no_token: a server drew an id without "
        "a token",
    ]
    generation_ids: A[list[str], "token records of its sequences, in order"]
    reward_names: A[list[str], "names of the parts of the environment's reward, if it names any"] = dataclasses.field(
        default_factory=list
    )
    reward_values: A[list[float], "these parts, before weighting"] = dataclasses.field(default_factory=list)
    task_digest: A[str, "as planned"] = ""

    added: ClassVar[tuple[str, ...]] = ("reward_names", "reward_values", "task_digest")
    rules: ClassVar[Rules] = Rules(
        key=("episode_id",),
        filled=("episode_id", "family"),
        sets={"stop_reason": _EPISODE_STOPS},
        ranges={"turns": (0, None), "tokens_read": (1, None), "invalid_actions": (0, None)},
        ordered=(("tokens_sampled", "turns"), ("turns", "invalid_actions")),
        rows={
            "an episode has a sequence, and names each once": (
                "len(generation_ids) > 0 AND len(list_distinct(generation_ids)) = len(generation_ids)"
            ),
            "guided means that an experience was shown": "guided = (len(entry_ids) > 0)",
            "every experience has its version and its text, and is shown once": (
                "len(entry_ids) = len(content_digests) AND len(entry_ids) = len(experiences)"
                " AND len(list_distinct(entry_ids)) = len(entry_ids)"
            ),
            "success is the stop reason of a success": "success = (stop_reason = 'success')",
            "the reward is finite": "isfinite(reward)",
            **_REWARD_PARTS,
            "an error has a reason code, nothing else has": "(stop_reason = 'error') = (error IS NOT NULL)",
            "what the last action did is known unless the environment broke": (
                f"({_BROKE}) = (last_observation IS NULL)"
            ),
        },
        between={
            "an episode has as many turns, and as many of them invalid, as it says": (
                "SELECT e.row, e.episode_id AS id FROM episodes e LEFT JOIN (SELECT episode_id, count(*) AS turns, "
                "sum((NOT valid)::INT) AS invalid FROM turns GROUP BY episode_id) t USING (episode_id) "
                # The turn in which an environment broke is not valid, and no fault of the actor's.
                "WHERE e.turns <> coalesce(t.turns, 0) "
                f"OR e.invalid_actions <> coalesce(t.invalid, 0) - coalesce({_BROKE} AND e.turns > 0, false)::INT"
            ),
            "every sequence of an episode has its token record": (
                "SELECT DISTINCT s.row, s.episode_id AS id FROM "
                "(SELECT row, episode_id, unnest(generation_ids) AS generation_id FROM episodes AS e) s "
                "LEFT JOIN generations g USING (generation_id) WHERE g.generation_id IS NULL OR g.kind <> 'episode'"
            ),
            "an episode read and wrote the tokens of its sequences": (
                "SELECT s.row, s.episode_id AS id FROM (SELECT row, episode_id, tokens_read, tokens_sampled, "
                "unnest(generation_ids) AS generation_id FROM episodes AS e) s JOIN generations g USING "
                "(generation_id) LEFT JOIN (SELECT generation_id, sum(last_token - first_token) AS wrote FROM turns "
                "GROUP BY generation_id) t USING (generation_id) GROUP BY s.row, s.episode_id "
                "HAVING any_value(s.tokens_sampled) <> sum(coalesce(t.wrote, 0)) "
                "OR any_value(s.tokens_read) <> sum(g.n_tokens - coalesce(t.wrote, 0))"
            ),
        },
    )

    def __post_init__(self) -> None:
        """A row of a guided or free episode may leave its stream out."""
        if not self.stream:
            object.__setattr__(self, "stream", GUIDED if self.guided else FREE)

    @property
    def experience(self) -> str | None:
        """What was shown: the text of the entry that guided it, or of several entries, numbered."""
        return shown_text(self.experiences)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RawReward(Row):
    """The environment's reward, where a family has its own convention; `episodes` has the trained reward.

    There is no such table where no family declares one.
    """

    table: ClassVar[str] = "raw_rewards"
    episode_id: A[str, "episode"]
    family: A[str, "task family"]
    raw_reward: A[float, "outcome reward of the environment"]

    rules: ClassVar[Rules] = Rules(
        key=("episode_id",),
        filled=("episode_id", "family"),
        rows={"the reward is finite": "isfinite(raw_reward)"},
        between={
            "a raw reward is that of an episode of the family": (
                "SELECT r.row, r.episode_id AS id FROM raw_rewards r LEFT JOIN episodes e USING (episode_id) "
                "WHERE e.family IS DISTINCT FROM r.family"
            ),
            "an episode that broke is worth nothing by any convention": (
                "SELECT r.row, r.episode_id AS id FROM raw_rewards r JOIN episodes e USING (episode_id) "
                "WHERE e.error IS NOT NULL AND (r.raw_reward <> 0 OR e.reward <> 0)"
            ),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Turn(Row):
    """One turn of an episode."""

    table: ClassVar[str] = "turns"
    episode_id: A[str, "episode"]
    turn: A[int, "turn index from 0"]
    observation: A[str, "what the actor saw before acting"]
    output: A[str, "the actor's text"]
    action: A[str | None, "action that the environment got: legal action, free text or tool call (JSON); null: none"]
    valid: A[bool, "whether the action was legal and taken"]
    feedback: A[str | None, "what the environment said about the action, apart from the observation; null: nothing"]
    generation_id: A[str, "sequence of the episode that the output was sampled in"]
    first_token: A[int, "offset of the output's first token in the sequence's token_ids"]
    last_token: A[int, "offset one past the output's last token"]
    stop_reason: A[str, "end_of_turn, stop_string or length"]
    turn_reward: A[float | None, "reward of the turn; null: the environment gives none per turn"] = None
    dropped_turns: A[int, "earlier turns that its prompt leaves out (`history`)"] = 0
    dropped_tokens: A[int, "earlier tokens that its prompt leaves out, of turns or thoughts"] = 0

    added: ClassVar[tuple[str, ...]] = ("turn_reward", "dropped_turns", "dropped_tokens")
    rules: ClassVar[Rules] = Rules(
        key=("episode_id", "turn"),
        filled=("episode_id", "generation_id"),
        ordered=(("last_token", "first_token"),),
        sets={"stop_reason": ("end_of_turn", "stop_string", "length")},
        ranges={"first_token": (0, None), "dropped_turns": (0, None)},
        rows={
            "a valid turn has an action": "NOT valid OR action IS NOT NULL",
            "what a prompt leaves out was there, and has tokens": (
                "dropped_turns <= turn AND (dropped_turns = 0 OR dropped_tokens > 0)"
            ),
            "what a turn earned is finite": "turn_reward IS NULL OR isfinite(turn_reward)",
            "turns of an episode are numbered without a gap": (
                "turn = row_number() OVER (PARTITION BY episode_id ORDER BY turn) - 1"
            ),
            "spans of a sequence do not overlap": (
                "first_token >= coalesce(lag(last_token) OVER (PARTITION BY generation_id ORDER BY turn), 0)"
            ),
        },
        between={
            "a turn is in a sequence of its episode": (
                "SELECT t.row, t.episode_id AS id FROM turns t ANTI JOIN (SELECT episode_id, unnest(generation_ids) "
                "AS generation_id FROM episodes) e USING (episode_id, generation_id)"
            ),
        },
    )


QUESTION = "<ask>"
"""Column `action` of a turn that asked a question (search-and-ask): answered if `valid`, else refused; what was replied
is in `feedback`."""

SUMMARY = "<summarize>"
"""Column `action` of a turn in which the actor wrote a summary of its history (`roles.actor.history`); the environment
took no step."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Question(Row):
    """One question of the actor (search-and-ask), answered or not."""

    table: ClassVar[str] = "questions"
    question_id: A[str, "q-<episode>-<index>"]
    round: A[int, "round of the episode"]
    family: A[str, "task family of the episode"]
    episode_id: A[str, "episode that asked"]
    turn: A[int, "turn that it took"]
    question: A[str, "the actor's words"]
    reason_code: A[str, "ok, or why it got no answer: see crl/rollout/asking.py"]
    entry_id: A[str | None, "entry that fits best; null: nothing searched or found"]
    content_digest: A[str | None, "version of that entry"]
    similarity: A[float | None, "cosine of question and entry"]
    generation_id: A[str | None, "token record of the answer (role extractor, kind ask); null: none"]
    answer: A[str | None, "the extractor's answer, as the actor read it; null: none"]

    rules: ClassVar[Rules] = Rules(
        key=("question_id",),
        filled=("question_id", "episode_id", "family"),
        sha256=("content_digest",),
        unique=(("episode_id", "turn"),),
        sets={"reason_code": _QUESTION_REASONS},
        ranges={"turn": (0, None), "similarity": (-1.0001, 1.0001)},
        rows={
            "the id names the episode": "starts_with(question_id, 'q-' || episode_id || '-')",
            "ok means that there is an answer": "(reason_code = 'ok') = (answer IS NOT NULL)",
            "an answer was sampled": "answer IS NULL OR (generation_id IS NOT NULL AND trim(answer) <> '')",
            "an answer comes from an entry": "generation_id IS NULL OR entry_id IS NOT NULL",
            "an entry comes with its version and similarity": together("entry_id", "content_digest", "similarity"),
        },
        between={
            "a question is a turn that asked, answered if the turn was valid": (
                "SELECT q.row, q.question_id AS id FROM questions q LEFT JOIN turns t USING (episode_id, turn) "
                "WHERE t.action IS DISTINCT FROM '<ask>' OR t.valid <> (q.answer IS NOT NULL) "
                "OR (t.valid AND t.feedback <> q.answer)"
            ),
            "a turn that asked has its question": (
                "SELECT t.row, t.episode_id AS id FROM turns t ANTI JOIN questions q USING (episode_id, turn) "
                "WHERE t.action = '<ask>'"
            ),
            "only guided episodes are answered": (
                "SELECT q.row, q.question_id AS id FROM questions q LEFT JOIN episodes e USING (episode_id) "
                "WHERE e.episode_id IS NULL OR (NOT e.guided AND q.reason_code <> 'free_episode')"
            ),
            "an answer has its token record": (
                "SELECT q.row, q.question_id AS id FROM questions q LEFT JOIN generations g USING (generation_id) "
                "WHERE q.generation_id IS NOT NULL AND g.kind IS DISTINCT FROM 'ask'"
            ),
            "the token record of an answer belongs to a question": (
                "SELECT g.row, g.generation_id AS id FROM generations g ANTI JOIN questions q USING (generation_id) "
                "WHERE g.kind = 'ask'"
            ),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TeacherContext(Row):
    """How the teacher of a free episode reads one of its sequences.

    It reads the first prompt as a guided episode has it, then the ids of the sequence behind its own first prompt.
    """

    table: ClassVar[str] = "teacher_contexts"
    episode_id: A[str, "free episode"]
    generation_id: A[str, "sequence of that episode, which follows the prompt"]
    entry_ids: A[list[str], "entries that the prompt shows, in their order"]
    content_digests: A[list[str], "their versions"]
    token_ids: A[list[int], TOKENS, "the prompt with the experiences"]
    replaced_tokens: A[int, "tokens at the start of the record that the prompt replaces"]

    rules: ClassVar[Rules] = Rules(
        key=("generation_id",),
        filled=("episode_id", "generation_id"),
        ranges={"replaced_tokens": (1, None)},
        rows={
            "token ids are not negative": "len(token_ids) > 0 AND list_min(token_ids) >= 0",
            "every entry has its version": "len(entry_ids) > 0 AND len(entry_ids) = len(content_digests)",
        },
        between={
            "a teacher's context belongs to a sequence of a free episode": (
                "SELECT c.row, c.generation_id AS id FROM teacher_contexts c ANTI JOIN (SELECT episode_id, "
                "unnest(generation_ids) AS generation_id FROM episodes WHERE NOT guided) e "
                "USING (episode_id, generation_id)"
            ),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StrippedContext(Row):
    """A sequence of a guided episode without its experience text, as if it had been free.

    The first prompt without the experience, then exactly the sampled ids and reply ids of the sequence's own turns;
    the offer to ask, turns that asked, and what was replied to them are left out.
    """

    table: ClassVar[str] = "stripped_contexts"
    episode_id: A[str, "guided episode"]
    generation_id: A[str, "sequence of that episode: the token record it was made from"]
    token_ids: A[list[int], TOKENS, "whole sequence without any experience text"]
    loss_mask: A[list[int], MASK, "1 on the ids that the actor sampled in its own turns, else 0"]
    removed_tokens: A[int, "tokens left out: experience, offer, questions and replies"]
    choices: A[list[list[int]], CHOICES, "as in generations, of the tokens whose mask is 1"] = dataclasses.field(
        default_factory=list
    )

    rules: ClassVar[Rules] = Rules(
        key=("generation_id",),
        filled=("episode_id", "generation_id"),
        rows={
            "token_ids and loss_mask have one length": "len(token_ids) > 0 AND len(token_ids) = len(loss_mask)",
            "loss_mask holds 0 and 1 only": "list_min(loss_mask) >= 0 AND list_max(loss_mask) <= 1",
            "token ids are not negative": "list_min(token_ids) >= 0",
            "choices are those of every trained token, or there are none": "len(choices) IN (0, list_sum(loss_mask))",
        },
        between={
            "a stripped context belongs to a sequence of a guided episode": (
                "SELECT s.row, s.generation_id AS id FROM stripped_contexts s ANTI JOIN (SELECT episode_id, "
                "unnest(generation_ids) AS generation_id FROM episodes WHERE guided) e "
                "USING (episode_id, generation_id)"
            ),
            "every sequence of a guided episode has its stripped context": (
                "SELECT DISTINCT e.row, e.episode_id AS id FROM (SELECT row, episode_id, unnest(generation_ids) "
                "AS generation_id FROM episodes WHERE guided) e ANTI JOIN stripped_contexts s "
                "USING (episode_id, generation_id)"
            ),
            "the trained tokens of a stripped context are those of the turns that asked nothing": (
                "SELECT s.row, s.generation_id AS id FROM stripped_contexts s LEFT JOIN (SELECT generation_id, "
                "sum(last_token - first_token) AS sampled FROM turns WHERE action IS DISTINCT FROM '<ask>' "
                "GROUP BY generation_id) t USING (generation_id) "
                "WHERE list_sum(s.loss_mask) > coalesce(t.sampled, 0) "
                "OR (len(s.choices) = 0 AND list_sum(s.loss_mask) NOT IN (0, coalesce(t.sampled, 0)))"
            ),
            "a stripped context and what was removed are the whole record": (
                "SELECT s.row, s.generation_id AS id FROM stripped_contexts s LEFT JOIN generations g USING "
                "(generation_id) WHERE g.n_tokens IS DISTINCT FROM len(s.token_ids) + s.removed_tokens"
            ),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Generation(Row):
    """The token record of everything a model wrote. The ids sampled are the ids trained."""

    table: ClassVar[str] = "generations"
    generation_id: A[str, "id"]
    round: A[int, "round number"]
    stage: A[str, "stage that sampled it"]
    role: A[str, "role that wrote it: actor, extractor, or another of the recipe"]
    kind: A[str, "episode, critic, ask, distill or merge; reflect (ERL); predict, vary, annotate, fit (DreamGym)"]
    weights_digest: A[str, "digest of the weights that sampled it (table weights)"]
    temperature: A[float, "sampling temperature; log-probabilities are of the scaled distribution"]
    token_ids: A[list[int], TOKENS, "whole sequence, prompt and observations included"]
    loss_mask: A[list[int], MASK, "1 where the model sampled the token, 0 where it read it or had no choice"]
    logprobs: A[list[float], FLOATS, "behavior log-probability where the mask is 1 (before any cut), else 0"]
    prompt: A[str, "text of the first prompt"]
    output: A[str, "text the model wrote: all turns of the sequence"]
    stop_reason: A[str, "why sampling ended"]
    choices: A[list[list[int]], CHOICES, "ids that each token with mask 1 was chosen from; none: the vocabulary"] = (
        dataclasses.field(default_factory=list)
    )
    logprobs_by: A[
        str, "sampler: as above; server: a server's own, of what its cut left; trainer: those of behavior_logprobs"
    ] = SAMPLER

    added: ClassVar[tuple[str, ...]] = ("logprobs_by",)
    rules: ClassVar[Rules] = Rules(
        key=("generation_id",),
        filled=("generation_id", "stage", "stop_reason", "role", "kind"),
        sha256=("weights_digest",),
        sets={"logprobs_by": (SAMPLER, SERVER)},
        rows={"temperature is positive": "isfinite(temperature) AND temperature > 0", **TOKEN_ROWS},
        between={
            "a token record of the actor is a sequence of one episode": (
                "SELECT g.row, g.generation_id AS id FROM generations g LEFT JOIN (SELECT generation_id, count(*) AS "
                "named FROM (SELECT unnest(generation_ids) AS generation_id FROM episodes) GROUP BY generation_id) e "
                "USING (generation_id) WHERE g.kind = 'episode' AND e.named IS DISTINCT FROM 1"
            ),
            "the trained tokens of a sequence are those of its turns": (
                "SELECT g.row, g.generation_id AS id FROM generations g LEFT JOIN (SELECT generation_id, "
                "sum(last_token - first_token) AS sampled, max(last_token) AS last FROM turns GROUP BY generation_id) "
                "t USING (generation_id) LEFT JOIN (SELECT generation_id, sum(greatest(0, least(r.until, "
                "t.last_token) - greatest(r.since, t.first_token))) AS inside FROM (SELECT generation_id, "
                "unnest(trained_since) AS since, unnest(trained_until) AS until FROM generations WHERE kind = "
                "'episode') r JOIN turns t USING (generation_id) GROUP BY generation_id) c USING (generation_id) "
                # Tokens that left no choice are sampled and not trained.
                "WHERE g.kind = 'episode' AND (g.trained <> coalesce(c.inside, 0) OR coalesce(t.last, 0) > g.n_tokens "
                "OR (g.chosen = 0 AND g.trained NOT IN (0, coalesce(t.sampled, 0))))"
            ),
            "every token record of the extractor is accounted for": (
                "SELECT g.row, g.generation_id AS id FROM generations g ANTI JOIN distillations d USING "
                "(generation_id) WHERE g.kind IN ('distill', 'merge')"
            ),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BehaviorLogprobs(Row):
    """Behavior log-probabilities of a token record whose own are a server's: before any cut, by its round's trainer."""

    table: ClassVar[str] = "behavior_logprobs"
    generation_id: A[str, "token record of the round"]
    weights_digest: A[str, "digest of the weights that sampled it, which computed these"]
    logprobs: A[list[float], FLOATS, "behavior log-probability where its mask is 1, else 0"]

    rules: ClassVar[Rules] = Rules(
        key=("generation_id",),
        filled=("generation_id",),
        sha256=("weights_digest",),
        rows={
            "a token record has tokens": "len(logprobs) > 0",
            "log-probabilities are finite and not positive": (
                "isfinite(list_sum(logprobs)) AND list_max(logprobs) <= 1e-4"
            ),
        },
    )


def turns_by_episode(turns: Iterable[Turn]) -> dict[str, list[Turn]]:
    """The turns of each episode, in order."""
    found: dict[str, list[Turn]] = {}
    for turn in sorted(turns, key=lambda turn: turn.turn):
        found.setdefault(turn.episode_id, []).append(turn)
    return found


def first_sequence(generation_id: str) -> str:
    """Id of the first sequence of the episode that a sequence is of: later ones have `-s` and a number behind it."""
    return re.sub(r"-s\d+$", "", generation_id)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(Row):
    """One held-out episode."""

    table: ClassVar[str] = "evaluations"
    evaluation_id: A[str, "id"]
    round: A[int, "round evaluated"]
    condition: A[str, "with_bank, without_bank, or random (any legal action; round 0 only)"]
    family: A[str, "task family"]
    environment_seed: A[int, "held-out seed"]
    guided: A[bool, "whether an experience was found"]
    entry_ids: A[list[str], "entries shown, in that order"] = dataclasses.field(default_factory=list)
    success: A[bool, "whether the task was solved"]
    reward: A[float, "outcome reward of the environment"]
    turns: A[int, "turns played"]
    invalid_actions: A[int, "turns without a legal action"]
    tokens_read: A[int, "tokens the actor read, as in episodes; random: 0"]
    tokens_sampled: A[int, "tokens the actor wrote; random: 0"]
    stop_reason: A[str, "as in episodes"]
    actions: A[list[str], "actions taken; an invalid one is an empty string"]
    reward_names: A[list[str], "as in episodes"] = dataclasses.field(default_factory=list)
    reward_values: A[list[float], "as in episodes"] = dataclasses.field(default_factory=list)

    added: ClassVar[tuple[str, ...]] = ("reward_names", "reward_values")
    rules: ClassVar[Rules] = Rules(
        key=("evaluation_id",),
        filled=("evaluation_id", "family"),
        sets={"condition": ("with_bank", "without_bank", "random"), "stop_reason": _EPISODE_STOPS},
        ranges={"turns": (0, None), "invalid_actions": (0, None)},
        ordered=(("turns", "invalid_actions"),),
        rows={
            "guided means that an experience was shown": "guided = (len(entry_ids) > 0)",
            "without the bank nothing is guided": "condition = 'with_bank' OR NOT guided",
            "success is the stop reason of a success": "success = (stop_reason = 'success')",
            "the reward is finite": "isfinite(reward)",
            **_REWARD_PARTS,
            "every turn has an action": "stop_reason = 'error' OR len(actions) = turns",
            "a turn has sampled tokens, but for the random policy's": (
                "CASE condition WHEN 'random' THEN tokens_read = 0 AND tokens_sampled = 0 "
                "ELSE tokens_read > 0 AND tokens_sampled >= turns END"
            ),
        },
    )
