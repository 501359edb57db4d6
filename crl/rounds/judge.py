"""A judge as reward: what a wave of episodes is worth by a frozen model that reads them (role `judge`).

:func:`judged` is called for every wave that a stage has played, before any of its rows is written; so `success` and
`reward` are the judge's in every table, and nothing that reads them knows the difference. Warm starts are not judged:
they imitate.

The judge reads goal, first observation, turns and end of an episode. It sees neither the experience that guided it (it
would come to pay the experience for being read), nor a thought, a question or what was answered to one, nor a number
of a member. It answers with whole numbers from 0 to 10, whose tenths are the rewards. A judge that is sampled here can
answer with nothing else; what an endpoint answers is parsed, and asked again. An episode that stays without a score
ends with the error `judge_<reason>`: it is in no baseline, no evaluation and no prompt of an extractor, and counted
where games that broke are shown.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, replace
from textwrap import indent

import numpy as np

from crl.config.environments import FamilyReward
from crl.config.method import JUDGE, JUDGED_AT_ONCE
from crl.errors import EngineDied, RequestRefused, StageFailed
from crl.extractor.trajectory import render_trajectory
from crl.protocols import Chat, Policy, Session, StopReason
from crl.records import QUESTION, SUMMARY, Episode, Turn, Verdict, Weights
from crl.records.play import UNSCORED
from crl.rollout.actions import AnswerTrees
from crl.rollout.play import PlayedEpisode
from crl.rounds.context import StageContext
from crl.rounds.weights import weights_of
from crl.run.journal import JsonLines
from crl.text.answers import after_thoughts
from crl.text.outputs import prompt_text
from crl.text.unicode import valid_text

TOP = 10
"""The best score; the worst is 0."""
SCORES = tuple(str(score) for score in range(TOP + 1))
ATTEMPTS = 3
"""How often an endpoint is asked until its answer gives scores."""
MOST_IN_VAIN = 8
"""So many verdicts were asked for in a wave, and none has a score: then the judge is out of order, not what it reads.
What is too long for it was not asked for."""
AT_A_TIME = 64
"""Requests that an endpoint is sent at a time (`runtime.servers`). Where it answers none of so many, nobody is there:
the next ones are not waited for."""
OK, TOO_LONG, NO_ANSWER, REFUSED = "ok", "prompt_too_long", "no_answer", "refused"
FORM = {
    "absolute": f"Score the answer from 0 (worst) to {TOP} (best) by what stands above. Reply with one whole number "
    "and nothing else.",
    "group": f"Score each answer from 0 (worst) to {TOP} (best) by what stands above, as if it stood alone: equal "
    "answers get equal scores. Reply with whole numbers and nothing else: one for each answer, in their order, with "
    "commas between them.",
}
_ABOVE = "(the task, as above)"
_NUMBER = r"[-+]?\d+(?:\.\d+)?"
_SCORE = rf"{_NUMBER}(?:\s*/\s*{TOP}\b)?"
_APART = r"[^\w+\-\u2212%]*"
_LINE = re.compile(
    rf"{_APART}(?:(?:scores?|ratings?)\b{_APART})?({_SCORE}(?:(?:\s*[,;|]\s*|\s+){_SCORE})*){_APART}", re.IGNORECASE
)
"""Scores and nothing else: a number in a sentence, of an answer, or in percent, is none."""
_STREAM = 0x6A756467
"""Sets the streams of a judge apart from what an episode draws itself."""
SeedOf = Callable[[str], np.random.SeedSequence]


def judged(
    ctx: StageContext, played: list[PlayedEpisode], *, seed_of: SeedOf, thinking: bool, groups: bool
) -> list[PlayedEpisode]:
    """The episodes of a wave with the rewards of the judge where their family has one, and its verdicts beside them.

    Args:
        ctx: of a stage that reads the judge's weights; another's episodes stay as they are.
        played: whole groups.
        seed_of: the seed of an episode, as it was played with.
        thinking: whether the actor's prompts begin a thought.
        groups: whether its groups are those of the plan, which a family may have judged as such.

    Raises StageFailed where :data:`MOST_IN_VAIN` verdicts were asked for and none was given.
    """
    reads = any(read.name == JUDGE for read in ctx.stage.reads)
    conventions = {family.name: family.reward for family in ctx.method.judged if family.reward is not None}
    wanted = [each for each in played if reads and each.episode.family in conventions and each.episode.error is None]
    if not wanted:
        return played
    scored = {family.name for family in ctx.method.judged if family.environment.ends_with_reward}
    wanted = [_without_end(each) if each.episode.family in scored else each for each in wanted]
    readings = list(_readings(wanted, conventions, seed_of, thinking=thinking, groups=groups))
    weights = weights_of(ctx, JUDGE)
    asker = _Asker(ctx, ctx.services.policy(JUDGE, weights), weights)
    with ctx.timed("judge", len(readings)):
        verdicts = asker.verdicts(readings)
    last = [verdicts[reading.key][-1] for reading in readings if reading.number == 0]
    if in_vain(last):
        asker.forget()
        flaws = Counter(verdict.reason_code for listed in verdicts.values() for verdict in listed)
        raise StageFailed(
            f"the judge gave no score, {len(last)} times: "
            + ", ".join(f"{reason} {count}" for reason, count in flaws.most_common())
            + f"; at last: {last[-1].output!r:.300}",
            expected=f"whole numbers from 0 to {TOP}",
            where=f"role {JUDGE} ({weights.source}), round {ctx.round}, stage {ctx.stage.name}",
            next_step="mend what it answers with (runtime.servers.judge has its address and time limit), and resume: "
            "what is complete is kept. Another model or rubric is another experiment",
        )
    unrewarded = {family.name for family in ctx.method.judged if family.environment.rewards_nothing}
    return _rewarded(played, readings, verdicts, conventions, unrewarded)


def _without_end(each: PlayedEpisode) -> PlayedEpisode:
    return replace(each, episode=replace(each.episode, last_observation=None))


def in_vain(last: Sequence[Verdict]) -> bool:
    """Whether verdicts say that the judge is out of order."""
    asked = [verdict for verdict in last if verdict.reason_code != TOO_LONG]
    return len(asked) >= MOST_IN_VAIN and all(verdict.reason_code != OK for verdict in asked)


def is_unscored(episode: Episode) -> bool:
    """Whether its judge gave it no score."""
    return episode.error is not None and episode.error.startswith(UNSCORED)


def _rewarded(
    played: Sequence[PlayedEpisode],
    readings: Sequence[_Reading],
    verdicts: Mapping[str, list[Verdict]],
    conventions: Mapping[str, FamilyReward],
    unrewarded: Set[str],
) -> list[PlayedEpisode]:
    """The episodes with the scores of the first readings. The verdicts of a group are beside the first it shows.
    The environments of the families `unrewarded` say nothing of a reward."""
    scores: dict[str, float | str] = {}
    beside: dict[str, list[Verdict]] = defaultdict(list)
    for reading in readings:
        listed = verdicts[reading.key]
        beside[listed[0].episode_ids[0]] += listed
        if reading.number == 0:
            for place, episode_id in enumerate(listed[-1].episode_ids):
                scores[episode_id] = listed[-1].scores[place] if listed[-1].scores else listed[-1].reason_code
    found = []
    for each in played:
        episode, name = each.episode, each.episode.episode_id
        score = scores.get(name)
        if isinstance(score, str):
            code, told = UNSCORED + score, f"the judge gave no score: {score}"
            left = replace(episode, success=False, reward=0.0, stop_reason=StopReason.error.value, error=code)
            each = replace(each, episode=left, raw_reward=0.0, details=told)
        elif score is not None:
            convention = conventions[episode.family]
            success = score >= convention.success_at
            lost = StopReason.failure.value if episode.success else episode.stop_reason
            parts = {} if episode.family in unrewarded else {"environment": each.raw_reward}
            parts |= dict(zip(episode.reward_names, episode.reward_values, strict=True)) | {JUDGE: score}
            each = replace(
                each,
                episode=replace(
                    episode,
                    success=success,
                    reward=convention.of(score, success=success),
                    stop_reason=StopReason.success.value if success else lost,
                    reward_names=list(parts),
                    reward_values=list(parts.values()),
                ),
                raw_reward=score,
            )
        found.append(replace(each, verdicts=beside[name]) if beside[name] else each)
    return found


def write_verdicts(ctx: StageContext, played: Iterable[PlayedEpisode]) -> None:
    """Write the verdicts beside episodes, in a stage that has such rows."""
    if Verdict in ctx.stage.writes:
        ctx.write(Verdict, [verdict for each in played for verdict in each.verdicts])


# -- what is asked ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reading:
    """Episodes that the judge reads at one time, in this order."""

    key: str
    """Names it inside its stage."""
    number: int
    """0: it pays; 1: the second one."""
    family: str
    mode: str
    episode_ids: list[str]
    system: str
    shown: str
    seed: np.random.SeedSequence

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": self.system}, {"role": "user", "content": self.shown}]

    def drawn(self, attempt: int) -> int:
        """The seed of an attempt, as one number of 63 bits."""
        return int(_child(self.seed, attempt).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _readings(
    wanted: Sequence[PlayedEpisode],
    conventions: Mapping[str, FamilyReward],
    seed_of: SeedOf,
    *,
    thinking: bool,
    groups: bool,
) -> Iterator[_Reading]:
    """Every reading of a wave: a group at once, or its episodes one by one; and some groups for a second time."""
    together: dict[tuple[str, int], list[PlayedEpisode]] = defaultdict(list)
    for each in wanted:
        together[each.episode.family, each.episode.group].append(each)
    for (family, group), members in together.items():
        convention = conventions[family]
        first = _child(seed_of(members[0].episode.episode_id), _STREAM)
        draw = np.random.default_rng(_child(first, 0))
        again = groups and len(members) > 1 and draw.random() < convention.twice
        at_once = groups and len(members) > 1 and convention.mode == "group"
        parts = [members] if at_once else [[each] for each in members]
        order = draw.permutation(len(members))
        for number in range(1 + again):
            for part in parts:
                name = f"{family}-g{group:04d}" if at_once else part[0].episode.episode_id
                listed = [part[place] for place in order] if at_once else part
                listed = listed[::-1] if number else listed
                stream = first if at_once else _child(seed_of(part[0].episode.episode_id), _STREAM)
                yield _Reading(
                    key=f"{name}/v{number}",
                    number=number,
                    family=family,
                    mode="group" if at_once else "absolute",
                    episode_ids=[each.episode.episode_id for each in listed],
                    system=f"{convention.judge}\n\n{FORM['group' if at_once else 'absolute']}",
                    shown=shown_text(listed, thinking=thinking),
                    seed=_child(stream, 1 + number),
                )


def _child(seed: np.random.SeedSequence, number: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, number))


def shown_text(members: Sequence[PlayedEpisode], *, thinking: bool = False) -> str:
    """What the judge reads of episodes of one task: the task once, then each as an answer. Lines of an answer are
    indented: none looks like the beginning of another one."""
    start = members[0].start
    task = [f"Task: {members[0].episode.goal}", *(f"[{role}] {text}" for role, text in start.messages)]
    task.append(start.observation)
    answers = [
        (f"Answer {number}:\n" if len(members) > 1 else "Answer:\n") + indent(_answer(each, thinking=thinking), "  ")
        for number, each in enumerate(members, start=1)
    ]
    return "\n\n".join(["\n".join(task), *answers])


def _answer(each: PlayedEpisode, *, thinking: bool) -> str:
    turns = [turn for turn in each.turns if turn.action not in (QUESTION, SUMMARY)]
    shown = [_without_thoughts(turn, number, thinking=thinking) for number, turn in enumerate(turns)]
    if shown and shown[0].observation == each.start.observation:
        shown[0] = replace(shown[0], observation=_ABOVE)
    if len(shown) == 1 and shown[0].valid and not each.episode.last_observation:
        return shown[0].output  # a completion: nothing came of it that would have to be told apart
    return render_trajectory(shown, each.episode.last_observation).text


def _without_thoughts(turn: Turn, number: int, *, thinking: bool) -> Turn:
    output = (after_thoughts(turn.output, begun=thinking) or "").strip() or "(nothing)"
    return replace(turn, turn=number, output=output, action=output if turn.action == turn.output else turn.action)


# -- asking ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Said:
    """What the judge answered to a reading."""

    output: str
    """The answer; without one, what kept it away."""
    tokens_read: int
    tokens_sampled: int
    flaw: str | None = None
    """What went wrong before there was an answer that can be parsed."""


class _Asker:
    """The judge of a stage, and what it answered in earlier attempts at the part that is under way."""

    def __init__(self, ctx: StageContext, policy: Policy, weights: Weights) -> None:
        self._ctx, self._policy, self._weights = ctx, policy, weights
        self._role = ctx.method.role(JUDGE)
        self._remote = self._role.engine.REMOTE
        self._sampling = self._role.sampling.model_copy(update={"stop_strings": [], "constrain": "none"})
        self._context = min(policy.context, self._role.context)
        self._file, self._kept = self._opened()
        self._asked_for: list[str] = []

    def _opened(self) -> tuple[JsonLines | None, dict[str, _Said]]:
        if self._ctx.unfinished is None:
            return None, {}
        self._ctx.unfinished.mkdir(parents=True, exist_ok=True)
        file, kept = JsonLines(self._ctx.unfinished / "verdicts.jsonl"), dict[str, _Said]()
        for line in file.read():
            try:
                for each in line.pop("forgotten", ()):
                    kept.pop(each, None)
                if (asked := line.pop("asked", None)) is not None:
                    kept[asked] = _Said(**line)
            except TypeError:  # a line of another version: it is asked again
                continue
        return file, kept

    def forget(self) -> None:
        """What was answered here is asked again, once the judge is mended."""
        if self._file is not None:
            self._file.append({"forgotten": self._asked_for})

    def verdicts(self, readings: Sequence[_Reading]) -> dict[str, list[Verdict]]:
        """Every answer to each reading, by its key: the last one has scores, or is the last that is asked for."""
        found: dict[str, list[Verdict]] = {reading.key: [] for reading in readings}
        waiting = list(readings)
        for attempt in range(ATTEMPTS):
            said = self._said(waiting, attempt) if waiting else {}
            for reading in waiting:
                found[reading.key].append(self._verdict(reading, attempt, said[reading.key]))
            waiting = [reading for reading in waiting if found[reading.key][-1].reason_code in _AGAIN]
        return found

    def _verdict(self, reading: _Reading, attempt: int, said: _Said) -> Verdict:
        reason, scores = said.flaw, list[float]()
        if reason is None:
            reason, scores = parse_scores(
                said.output, len(reading.episode_ids), thinking=self._policy.chat.opens_thought
            )
        return Verdict(
            verdict_id=f"{self._ctx.round:04d}-{self._ctx.stage.name}/{reading.key}.{attempt}",
            round=self._ctx.round,
            family=reading.family,
            mode=reading.mode,
            episode_ids=reading.episode_ids,
            reading=reading.number,
            attempt=attempt,
            prompt=prompt_text(reading.messages),
            output=said.output,
            scores=scores,
            reason_code=reason,
            weights_digest=self._weights.weights_digest,
            model=self._weights.source,
            tokens_read=said.tokens_read,
            tokens_sampled=said.tokens_sampled,
        )

    def _said(self, readings: Sequence[_Reading], attempt: int) -> dict[str, _Said]:
        """What is answered to each reading; kept ones are not asked again."""
        asked = {reading.key: self._asked(reading, attempt) for reading in readings}
        self._asked_for += asked.values()
        found = {key: self._kept[name] for key, name in asked.items() if name in self._kept}
        prompts = {reading.key: list(self._policy.chat.opening(reading.messages)) for reading in readings}
        fitting = []
        for reading in readings:
            if self._needs(reading, prompts[reading.key]) > self._context:
                found[reading.key] = _Said("", 0, 0, TOO_LONG)
            else:
                fitting.append(reading)

        def keep(reading: _Reading, said: _Said) -> None:
            found[reading.key] = said
            answered = said.flaw not in (NO_ANSWER, REFUSED)
            if answered and self._file is not None and asked[reading.key] not in self._kept:
                self._file.append({"asked": asked[reading.key], **dataclasses.asdict(said)})

        if self._remote:
            wanted = [each for each in fitting if each.key not in found]
            self._ask_endpoint(wanted, prompts, attempt, keep)
            for each in wanted:
                found.setdefault(each.key, _Said("nobody was answered before", 0, 0, NO_ANSWER))
        else:
            # Rows that are sampled side by side stay side by side: a batch is kept whole, or asked for whole.
            for at in range(0, len(fitting), JUDGED_AT_ONCE):
                batch = fitting[at : at + JUDGED_AT_ONCE]
                if any(each.key not in found for each in batch):
                    self._sample(batch, prompts, attempt, keep)
        return found

    def _asked(self, reading: _Reading, attempt: int) -> str:
        parts = [reading.key, attempt, reading.drawn(attempt), reading.messages, self._weights.weights_digest]
        settings = [self._role.model_dump(mode="json"), self._ctx.round, self._ctx.stage.name]
        return hashlib.sha256(json.dumps([*parts, *settings], sort_keys=True).encode()).hexdigest()

    def _needs(self, reading: _Reading, prompt: Sequence[int]) -> int:
        """Tokens that the prompt takes with all answers."""
        if self._remote:
            return len(prompt) + 1
        chat, count = self._policy.chat, len(reading.episode_ids)
        longest = max(len(chat.answer(score)) for score in SCORES)
        return len(prompt) + count * longest + sum(len(_next(chat, each)) for each in range(2, count + 1))

    def _ask_endpoint(
        self,
        readings: Sequence[_Reading],
        prompts: Mapping[str, list[int]],
        attempt: int,
        keep: Callable[[_Reading, _Said], None],
    ) -> None:
        """A row of its own for each: what one waits for in vain costs itself alone. An answer is kept at once."""
        rows: list[tuple[_Reading, Session]] = []
        for reading in readings:
            session = self._policy.open([prompts[reading.key]], [reading.drawn(attempt)])
            session.begin([0], self._sampling)
            rows.append((reading, session))

        def anybody_there(reading: _Reading, session: Session) -> bool:
            read = len(prompts[reading.key])
            try:
                sampled = session.advance()[0]
            except (EngineDied, RequestRefused) as error:
                refused = isinstance(error, RequestRefused)
                keep(reading, _Said(error.found, read, 0, REFUSED if refused else NO_ANSWER))
                return refused
            text = valid_text(self._policy.chat.decode(sampled.token_ids))
            flaw = "truncated" if sampled.stop_reason is StopReason.length else None
            keep(reading, _Said(text, read, len(sampled.token_ids), flaw))
            return True

        with ThreadPoolExecutor(max(len(rows), 1), thread_name_prefix="judge") as pool:
            try:
                waiting = [pool.submit(anybody_there, *row) for row in rows]
                ended: list[bool] = []
                for each in as_completed(waiting):
                    ended.append(each.result())
                    if len(ended) == AT_A_TIME and not any(ended):
                        break
            finally:
                for _, session in rows:
                    session.close()

    def _sample(
        self,
        batch: Sequence[_Reading],
        prompts: Mapping[str, list[int]],
        attempt: int,
        keep: Callable[[_Reading, _Said], None],
    ) -> None:
        """The prompt of each with all it shows, then a turn per episode that is one of :data:`SCORES`."""
        chat = self._policy.chat
        tree = AnswerTrees(chat, self._context).of(SCORES)
        said: dict[int, list[str]] = {row: [] for row in range(len(batch))}
        wrote = dict.fromkeys(said, 0)
        seeds = [each.drawn(attempt) for each in batch]
        with closing(self._policy.open([prompts[each.key] for each in batch], seeds, JUDGED_AT_ONCE)) as session:
            session.begin(list(said), self._sampling, dict.fromkeys(said, tree))
            while sampled := session.advance():
                pieces: dict[int, list[int]] = {}
                for row, turn in sorted(sampled.items()):
                    said[row].append(valid_text(chat.decode(turn.token_ids)))
                    wrote[row] += len(turn.token_ids)
                    if len(said[row]) < len(batch[row].episode_ids):
                        pieces[row] = _next(chat, len(said[row]) + 1, by=turn.token_ids[-1])
                        continue
                    scores = [(after_thoughts(text, begun=chat.opens_thought) or "").strip() for text in said[row]]
                    keep(batch[row], _Said(", ".join(scores), session.length(row) - wrote[row], wrote[row]))
                session.drop([row for row in sampled if row not in pieces])
                session.extend(pieces)
                if pieces:
                    session.begin(list(pieces), self._sampling, dict.fromkeys(pieces, tree))


_AGAIN = frozenset({"truncated", "unfinished_thought", "no_score", "wrong_count", "out_of_range"})
"""Flaws of an answer that another one may lack. The client itself has asked again where none came."""


def _next(chat: Chat, number: int, by: int | None = None) -> list[int]:
    return list(chat.reply(f"Score of answer {number}:", ended=True, by=by))


def parse_scores(text: str, count: int, *, thinking: bool = False) -> tuple[str, list[float]]:
    """What a judge's answer is taken for: `ok` and as many scores from 0 to 1, or a reason code and none.

    What counts is the last line behind its thoughts that says anything. It has `count` numbers, and no other words than
    `Score`; `7/10` is 7.
    """
    answer = after_thoughts(text, begun=thinking)
    if answer is None:
        return "unfinished_thought", []
    line = next((line for line in reversed(answer.split("\n")) if line.strip()), "")
    if (written := _LINE.fullmatch(line)) is None:
        return "no_score", []
    numbers = [float(re.split(r"\s*/", each)[0]) for each in re.findall(_SCORE, written.group(1))]
    if len(numbers) != count:
        return "wrong_count", []
    if not all(0 <= each <= TOP for each in numbers):
        return "out_of_range", []
    return OK, [each / TOP for each in numbers]
