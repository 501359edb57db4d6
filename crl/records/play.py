"""Rows of playing: what was planned, retrieved, played, sampled and evaluated."""

from __future__ import annotations

import dataclasses
from typing import Annotated as A
from typing import ClassVar

from crl.records.base import CHOICES, FLOATS, MASK, TOKENS, Row

GUIDED, FREE = "guided", "free"
"""Streams of Complementary RL: rollouts of a group that are shown an experience, and unguided ones."""
SYNTHETIC = "synthetic"
"""Stream of rollouts in a model of the environment, which itself says what is won: an arm of its own in every count."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task(Row):
    """One planned episode: a slot of a group."""

    table: ClassVar[str] = "tasks"
    episode_id: A[str, "r<round>-<family>-g<group>-m<member>; evaluation episodes have their own ids"]
    round: A[int, "round number; 0 prepares, training starts at 1"]
    family: A[str, "task family, set by the config"]
    group: A[int, "group index over all families of the round"]
    member: A[int, "index inside the group, 0 to K-1"]
    environment_seed: A[int, "seed of the environment; shared by the group"]
    stream: A[str, "as planned: guided, free, or another of the recipe's; guided without an experience is played free"]
    goal: A[str, "what the environment asks for"]
    first_observation: A[str, "text of the first observation"]
    query: A[str, "retrieval query: goal and first observation"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval(Row):
    """One candidate of one retrieval, with every term of eq. 6."""

    table: ClassVar[str] = "retrievals"
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
    chosen: A[bool, "whether this candidate guides the episode; of several the one of highest score is first"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalCount(Row):
    """Cumulative retrieval counters after a round was planned, derived from the retrieval rows."""

    table: ClassVar[str] = "retrieval_counts"
    entry_id: A[str, "bank entry"]
    count: A[int, "times chosen so far, evaluation excluded"]
    last_round: A[int, "round of the last choice"]


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
    stream: A[
        str, "rollouts of a group that are compared with each other: guided, free, or another of the recipe's"
    ] = ""
    guided: A[bool, "whether an experience was in the prompt"]
    entry_id: A[str | None, "entry that guided the episode; of several (top_k) the first"]
    content_digest: A[str | None, "version of that entry"]
    experience: A[str | None, "what was shown: the text of that entry, or of several entries, numbered"]
    entry_ids: A[list[str], "every entry that guided the episode, in the order shown; none for a free episode"] = (
        dataclasses.field(default_factory=list)
    )
    content_digests: A[list[str], "versions of these entries"] = dataclasses.field(default_factory=list)
    experiences: A[list[str], "texts of these entries as shown"] = dataclasses.field(default_factory=list)
    goal: A[str, "what the environment asked for"]
    success: A[bool, "whether the task was solved, as the environment says"]
    reward: A[float, "outcome reward, by the convention of the family (raw_rewards has the environment's own): finite"]
    turns: A[int, "turns played"]
    invalid_actions: A[int, "turns whose action did not parse or was illegal"]
    tokens_read: A[int, "tokens the actor read: prompt and observations, each once"]
    tokens_sampled: A[int, "tokens the actor wrote"]
    stop_reason: A[str, "success, failure, turn_limit, context_limit or error"]
    last_observation: A[str | None, "what the last action did, as the environment showed it; null where it broke"]
    error: A[
        str | None,
        "reason code where the environment broke; prompt_too_long: the first prompt did not fit, nothing was shown; "
        "no_token: a server drew an id that is no token",
    ]
    generation_id: A[str, "token record of the episode"]

    def __post_init__(self) -> None:
        """A row of one experience may leave the lists out, and one of a guided or free episode its stream."""
        if not self.stream:
            object.__setattr__(self, "stream", GUIDED if self.guided else FREE)
        if self.entry_id is not None and not self.entry_ids:
            object.__setattr__(self, "entry_ids", [self.entry_id])
            object.__setattr__(self, "content_digests", [self.content_digest])
            object.__setattr__(self, "experiences", [self.experience])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RawReward(Row):
    """What the environment gave an episode whose family declares a reward convention; `episodes` has what is trained.

    There is no such table where no family declares one.
    """

    table: ClassVar[str] = "raw_rewards"
    episode_id: A[str, "episode"]
    family: A[str, "task family"]
    raw_reward: A[float, "outcome reward of the environment"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Turn(Row):
    """One turn of an episode."""

    table: ClassVar[str] = "turns"
    episode_id: A[str, "episode"]
    turn: A[int, "turn index from 0"]
    observation: A[str, "what the actor saw before acting"]
    output: A[str, "the actor's text"]
    action: A[str | None, "legal action, free text or tool call (JSON) that the environment was given; null: none"]
    valid: A[bool, "whether the action was legal and taken"]
    feedback: A[str | None, "what the environment said about the action beside the observation; null: nothing"]
    first_token: A[int, "offset of the output's first token in the generation's token_ids"]
    last_token: A[int, "offset one past the output's last token"]
    stop_reason: A[str, "end_of_turn, stop_string or length"]


QUESTION = "<ask>"
"""Column `action` of a turn that asked a question (search-and-ask): answered if `valid`, else refused; what was replied
is in `feedback`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Question(Row):
    """One question of an actor's (search-and-ask), answered or refused."""

    table: ClassVar[str] = "questions"
    question_id: A[str, "q-<episode>-<index>"]
    round: A[int, "round of the episode"]
    family: A[str, "task family of the episode"]
    episode_id: A[str, "episode that asked"]
    turn: A[int, "turn it was asked in; the turn is spent"]
    question: A[str, "the actor's words"]
    reason_code: A[str, "ok where it was answered, else why not: see crl/rollout/asking.py"]
    entry_id: A[str | None, "top entry for the question; null where nothing was searched or found"]
    content_digest: A[str | None, "version of that entry"]
    similarity: A[float | None, "cosine of question and entry"]
    generation_id: A[str | None, "token record of the answer (role extractor, kind ask); null where none was sampled"]
    answer: A[str | None, "what the extractor answered, as the actor read it; null where it did not"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StrippedContext(Row):
    """A guided episode as its free version would have been recorded: all experience text is left out.

    The first prompt without the experience, then exactly the sampled ids and reply ids of the episode's own turns;
    the offer to ask, turns that asked, and what was replied to them are left out.
    """

    table: ClassVar[str] = "stripped_contexts"
    episode_id: A[str, "guided episode"]
    generation_id: A[str, "token record it was made from"]
    token_ids: A[list[int], TOKENS, "whole sequence without any experience text"]
    loss_mask: A[list[int], MASK, "1 on the ids that the actor sampled in its own turns, else 0"]
    removed_tokens: A[int, "tokens of the record that are left out: experience, offer, questions and what was replied"]
    choices: A[list[list[int]], CHOICES, "as in generations, of the tokens whose mask is 1"] = dataclasses.field(
        default_factory=list
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Generation(Row):
    """The token record of everything a model wrote: the ids sampled are the ids trained."""

    table: ClassVar[str] = "generations"
    generation_id: A[str, "id; derived from what it was written for"]
    round: A[int, "round number"]
    stage: A[str, "stage that sampled it"]
    role: A[str, "role that wrote it: actor, extractor, or another of the recipe"]
    kind: A[str, "episode, critic, ask, distill or merge; reflect (ERL); predict, vary, annotate, fit (DreamGym)"]
    weights_digest: A[str, "digest of the weights that sampled it (table weights)"]
    temperature: A[float, "sampling temperature; log-probabilities are of the scaled distribution"]
    token_ids: A[list[int], TOKENS, "whole sequence, prompt and observations included"]
    loss_mask: A[list[int], MASK, "1 where the model sampled the token, 0 where it read it or had no choice"]
    logprobs: A[list[float], FLOATS, "behavior log-probability where the mask is 1 (before top-k / top-p), else 0"]
    prompt: A[str, "text of the first prompt"]
    output: A[str, "text the model wrote (all turns)"]
    stop_reason: A[str, "why sampling ended"]
    choices: A[
        list[list[int]], CHOICES, "ids that each token with mask 1 was chosen among, in order; none: the vocabulary"
    ] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(Row):
    """One held-out episode."""

    table: ClassVar[str] = "evaluations"
    evaluation_id: A[str, "id"]
    round: A[int, "round evaluated"]
    arm: A[str, "with_bank, without_bank, or random: a policy that takes any legal action (round 0 only)"]
    family: A[str, "task family"]
    environment_seed: A[int, "held-out seed"]
    guided: A[bool, "whether an experience was found"]
    entry_id: A[str | None, "entry shown; of several (top_k) the first"]
    entry_ids: A[list[str], "every entry shown, in that order"] = dataclasses.field(default_factory=list)
    success: A[bool, "whether the task was solved"]
    reward: A[float, "outcome reward of the environment"]
    turns: A[int, "turns played"]
    invalid_actions: A[int, "turns without a legal action"]
    tokens_read: A[int, "tokens the actor read: prompt and observations, each once; 0 of a random policy"]
    tokens_sampled: A[int, "tokens the actor wrote; 0 of a random policy"]
    stop_reason: A[str, "as in episodes"]
    actions: A[list[str], "actions taken; an invalid one is the empty string"]

    def __post_init__(self) -> None:
        """A row of one experience may leave the list out."""
        if self.entry_id is not None and not self.entry_ids:
            object.__setattr__(self, "entry_ids", [self.entry_id])
