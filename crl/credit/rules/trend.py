"""An output earns what its episode's outcome exceeds the bank's best by (Skill1, 2605.06130): much where the bank had
nothing that goes as well, little where it had.

Every experience that was retrieved for an episode keeps a running utility U ← decay·U + (1 − decay)·r, with r the
outcome, ±1. An output that wrote an experience earns r − max U when it is written. A merged text has no episode: it
earns by its uses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from crl.credit.buffer import SCORED, Earned
from crl.credit.rules import Round, Rule, Scored
from crl.credit.uses import outcome, usable
from crl.records import CandidateUtility, Episode, Retrieval


def score(round: Round, before: Sequence[CandidateUtility]) -> Scored:
    """See the module; kept are the utilities, by entry id."""
    candidates = _candidates(round.retrievals)
    return Scored(
        round.uses,
        [*round.earned(round.uses), *_exceeding(round, candidates, before)],
        after=_utilities(before, round.episodes, candidates, round.config.usefulness_decay),
    )


def _exceeding(round: Round, candidates: dict[str, list[str]], before: Iterable[CandidateUtility]) -> list[Earned]:
    """By output that wrote an experience, r − max U: the outcome of its episode less the largest utility, before the
    round, of what was retrieved for any member of its group; r alone where nothing was."""
    known = {row.entry_id: row.utility for row in before}
    groups = {row.episode_id: (row.family, row.group) for row in round.episodes}
    best: dict[tuple[str, int], float] = {}
    for episode_id, entry_ids in candidates.items():
        largest = max(known.get(entry_id, 0.0) for entry_id in entry_ids)
        key = groups[episode_id]
        best[key] = max(best.get(key, largest), largest)
    played = {row.episode_id: row for row in round.episodes if usable(row)}
    found = []
    for row in round.distilled:
        episode = played.get(row.episode_id or "")
        if episode is not None and row.verdict not in ("malformed", "return"):
            reward = outcome(episode) - best.get(groups[episode.episode_id], 0.0)
            found.append(Earned(row.generation_id, reward, SCORED))
    return found


def _utilities(
    before: Iterable[CandidateUtility], episodes: Iterable[Episode], candidates: dict[str, list[str]], decay: float
) -> list[CandidateUtility]:
    """Utilities after the round: every candidate of a usable episode moves toward its outcome, in order."""
    utilities = {row.entry_id: row for row in before}
    for episode in episodes:
        for entry_id in candidates.get(episode.episode_id, ()) if usable(episode) else ():
            old = utilities.get(entry_id) or CandidateUtility(entry_id=entry_id, episodes=0, utility=0.0)
            utility = decay * old.utility + (1 - decay) * outcome(episode)
            utilities[entry_id] = replace(old, episodes=old.episodes + 1, utility=min(1.0, max(-1.0, utility)))
    return [utilities[entry_id] for entry_id in sorted(utilities)]


def _candidates(retrievals: Iterable[Retrieval]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for row in retrievals:
        if not row.teaches:
            found[row.episode_id].append(row.entry_id)
    return found


RULE = Rule(score, keeps=CandidateUtility, when_written=True)
