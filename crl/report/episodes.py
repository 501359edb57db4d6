"""The games that the report page replays: which of a run's episodes, and all that is known of each.

A page holds the newest rounds and a spread over the earlier ones, cut to a number of episodes and to
:data:`LARGEST` bytes; only the files of the rounds that are shown are read. Every text is kept once, in a list that the
episodes refer to: turns and experiences repeat. What is returned is data for JSON, and none of it is markup.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crl.report.cells import cut
from crl.report.views import reading
from crl.text.unicode import escaped, with_texts

if TYPE_CHECKING:
    import duckdb

EPISODES = 200
"""Episodes of a page, unless somebody asks for another number."""
LARGEST = 4_000_000
"""Bytes of JSON; what is beyond is left out."""
EARLIER_ROUNDS = 25
"""Rounds that the older half of the episodes is spread over."""
LONGEST = 20_000
"""Characters of one text; a longer one is cut and says so."""

_CHOSEN = """
CREATE TEMP TABLE chosen AS
WITH played AS (
    SELECT *,
        dense_rank() OVER (PARTITION BY round, family ORDER BY "group") AS nth_group,
        row_number() OVER (PARTITION BY round, "group", guided ORDER BY member) AS nth
    FROM episodes WHERE draw_of(stage) = 'collect'
),
placed AS (  -- families in turn, whole groups, a guided episode beside a free one
    SELECT *, row_number() OVER (PARTITION BY round ORDER BY nth_group, family, nth, guided DESC, member) AS place
    FROM played
)
SELECT placed.*
FROM placed JOIN (SELECT unnest($rounds) AS round, unnest($quotas) AS quota) AS wanted USING (round)
WHERE place <= quota
"""
_EPISODES = "SELECT * FROM chosen ORDER BY place, round DESC"
_TURNS = """
SELECT episode_id, observation, output, action, valid, feedback
FROM turns WHERE draw_of(stage) = 'collect' AND episode_id IN (SELECT episode_id FROM chosen) ORDER BY episode_id, turn
"""
_SEQUENCES = """
SELECT episode_id, generation_id AS id, tokens, tokens_trained AS trained, turns, dropped_turns, dropped_tokens
FROM sequences LEFT JOIN (
    SELECT generation_id, max(dropped_turns) AS dropped_turns, max(dropped_tokens) AS dropped_tokens
    FROM turns WHERE draw_of(stage) = 'collect' GROUP BY generation_id
) USING (generation_id)
WHERE draw_of(stage) = 'collect' AND episode_id IN (SELECT episode_id FROM chosen) ORDER BY episode_id, sequence
"""
_QUESTIONS = """
SELECT episode_id, turn, question, reason_code AS reason, entry_id AS entry, similarity
FROM questions WHERE draw_of(stage) = 'collect' AND episode_id IN (SELECT episode_id FROM chosen)
ORDER BY episode_id, turn
"""
_RETRIEVALS = """
SELECT retrieval.* EXCLUDE (chosen, entry_id)
FROM (
    SELECT episode_id, entry_id, chosen, bank_round, similarity, rank_score, "count", recent, score, rank,
        count(*) OVER (PARTITION BY episode_id) AS candidates
    FROM retrievals WHERE draw_of(stage) = 'plan' AND episode_id IN (SELECT episode_id FROM chosen)
) AS retrieval JOIN chosen USING (episode_id, entry_id)
WHERE retrieval.chosen
"""
_CREDITS = """
SELECT episode_id, outcome, free_mean, guided_minus_free
FROM credits JOIN chosen USING (episode_id, entry_id)
"""
_DISTILLATIONS = """
SELECT episode_id, distillation_id, verdict, reason_code, generation.output
FROM distillations AS written LEFT JOIN generations AS generation USING (round, stage, generation_id)
WHERE stage = 'distill' AND episode_id IN (SELECT episode_id FROM chosen) ORDER BY distillation_id
"""
_OPERATIONS = """
SELECT distillation_id, operation.kind, operation.entry_id, operation.text, event.kind AS became, event.reason
FROM operations AS operation JOIN distillations AS written USING (round, stage, distillation_id)
LEFT JOIN bank_events AS event USING (operation_id)
WHERE stage = 'distill' AND written.episode_id IN (SELECT episode_id FROM chosen)
ORDER BY distillation_id, operation.index
"""
# The bank's files are none of them, but for its events: its damage hides no episode.
_VIEWS = frozenset(
    {
        "bank_events", "credits", "distillations", "episodes", "generations", "operations", "questions", "retrievals",
        "turns",
    }
)  # fmt: skip
_PLAIN = ("round", "family", "group", "member", "environment_seed", "guided", "success", "reward", "stop_reason",
          "error", "invalid_actions")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Replays:
    """What the browser of episodes is made of."""

    episodes: list[dict[str, Any]] = field(default_factory=list)
    """Newest round first, then by group and member; texts are numbers: places in `texts`."""
    texts: list[str] = field(default_factory=list)
    played: int = 0
    """Training episodes of the whole run."""
    too_large: int = 0
    """Episodes that were chosen and did not fit into :data:`LARGEST`."""

    @property
    def left_out(self) -> int:
        """Episodes of the run that are not shown."""
        return self.played - len(self.episodes)

    @property
    def rounds(self) -> list[int]:
        """Rounds with an episode, newest first."""
        return list(dict.fromkeys(each["round"] for each in self.episodes))

    def json(self) -> str:
        """What the page embeds, for a script element of type application/json."""
        return as_json(with_texts({"episodes": self.episodes, "texts": self.texts}, escaped))


def replays(run_path: Path, played: Mapping[int, int], limit: int = EPISODES) -> Replays:
    """The episodes of a page. `played` counts the training episodes of each round. Raises RecordDamaged."""
    total, quotas = sum(played.values()), choose(played, limit)
    if not quotas:
        return Replays(played=total)
    with reading(run_path, sorted(quotas), views=_VIEWS) as connection:
        return _read(connection, quotas, total)


def choose(played: Mapping[int, int], limit: int) -> dict[int, int]:
    """How many episodes of which round: half of them the newest, half spread evenly over earlier rounds."""
    counts = {number: count for number, count in sorted(played.items(), reverse=True) if count}
    if sum(counts.values()) <= limit:
        return counts
    newest = _newest(counts, limit - limit // 2)
    spots = _spread([number for number in counts if number not in newest], min(EARLIER_ROUNDS, limit // 2))
    if not spots:
        return _newest(counts, limit)
    return newest | {number: min(counts[number], limit // 2 // len(spots)) for number in spots}


def _newest(counts: Mapping[int, int], limit: int) -> dict[int, int]:
    quotas: dict[int, int] = {}
    for number, count in counts.items():
        if quota := min(count, limit - sum(quotas.values())):
            quotas[number] = quota
    return quotas


def _spread(numbers: Sequence[int], count: int) -> list[int]:
    """So many of them, evenly, with the first and the last."""
    if count < 2 or len(numbers) <= count:
        return list(numbers[:count])
    return [numbers[round(index * (len(numbers) - 1) / (count - 1))] for index in range(count)]


def _read(connection: duckdb.DuckDBPyConnection, quotas: Mapping[int, int], total: int) -> Replays:
    connection.execute(_CHOSEN, {"rounds": list(quotas), "quotas": list(quotas.values())})

    def by(key: str, sql: str) -> dict[str, list[dict[str, Any]]]:
        """Rows of a query by one of their columns."""
        result = connection.execute(sql)
        names = [column[0] for column in result.description or ()]
        grouped: dict[str, list[dict[str, Any]]] = {}
        for row in result.fetchall():
            told = dict(zip(names, map(_finite, row), strict=True))
            grouped.setdefault(told.pop(key), []).append(told)
        return grouped

    turns, retrievals, credits = by("episode_id", _TURNS), by("episode_id", _RETRIEVALS), by("episode_id", _CREDITS)
    outputs, operations = by("episode_id", _DISTILLATIONS), by("distillation_id", _OPERATIONS)
    questions, chosen = by("episode_id", _QUESTIONS), by("episode_id", _EPISODES)
    sequences = by("episode_id", _SEQUENCES)
    texts, kept, size = _Texts(), [], 0
    for name, (episode,) in chosen.items():
        mark = len(texts.listed)
        told = {
            "id": name,
            **{key: episode[key] for key in _PLAIN},
            "goal": texts.place(episode["goal"]),
            "guide": None,
        }
        if episode["guided"]:
            told["guide"] = {"entry": ", ".join(episode["entry_ids"]), "text": texts.place(episode["experience"])}
            # How it was found and what it earned is shown for the first of several.
            for found in (*retrievals.get(name, ())[:1], *credits.get(name, ())[:1]):
                told["guide"] |= found
        # A turn is a list, because there are many.
        told["turns"] = [
            [*map(texts.place, (turn["observation"], turn["output"], turn["action"])), turn["valid"],
             texts.place(turn["feedback"])]
            for turn in turns.get(name, ())
        ]  # fmt: skip
        told["sequences"] = sequences.get(name, [])
        told["last"] = texts.place(episode["last_observation"])
        told["questions"] = [{**each, "question": texts.place(each["question"])} for each in questions.get(name, ())]
        told["outputs"] = [
            {
                "verdict": output["verdict"], "reason": output["reason_code"], "text": texts.place(output["output"]),
                "operations": [
                    {**each, "text": texts.place(each["text"])}
                    for each in operations.get(output["distillation_id"], ())
                ],
            }
            for output in outputs.get(name, ())
        ]  # fmt: skip
        size += len(as_json(told)) + sum(len(as_json(text)) + 1 for text in texts.listed[mark:])
        if size > LARGEST:
            texts.forget(mark)
            break
        kept.append(told)
    kept.sort(key=lambda each: (-each["round"], each["group"], each["member"]))
    return Replays(kept, texts.listed, total, len(chosen) - len(kept))


class _Texts:
    """Each text once, in the order of first use."""

    def __init__(self) -> None:
        self.listed: list[str] = []
        self._places: dict[str, int] = {}

    def place(self, text: str | None) -> int | None:
        """Where the text is in the list; None for none."""
        if text is None:
            return None
        text = cut(text, LONGEST)
        if text not in self._places:
            self._places[text] = len(self.listed)
            self.listed.append(text)
        return self._places[text]

    def forget(self, mark: int) -> None:
        """Drop the texts from a place on."""
        for text in self.listed[mark:]:
            del self._places[text]
        del self.listed[mark:]


def as_json(value: Any) -> str:
    """JSON in ASCII that may be inside a script element: <, >, & and ' are escaped, so no text can end it."""
    from jinja2.utils import htmlsafe_json_dumps

    return str(htmlsafe_json_dumps(value, separators=(",", ":")))


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
