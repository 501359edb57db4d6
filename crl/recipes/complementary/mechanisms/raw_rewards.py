"""Reward conventions of task families (`families[].reward`): what environments paid is kept beside what is learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from crl.config import Method
from crl.recipes.complementary.mechanisms import Adds, Mechanism, RowsByType, Sources
from crl.records import RawReward
from crl.rollout.play import PlayedEpisode
from crl.rounds.context import StageContext


class RawRewards(Mechanism):
    """On where some family has a convention; its settings are the families that have one."""

    key = "families.*.reward"
    after_rollouts = False
    config: frozenset[str]

    @classmethod
    def of(cls, method: Method) -> Self | None:
        declaring = frozenset(family.name for family in method.families if family.reward is not None)
        return cls(declaring) if declaring else None

    @property
    def needs_guided(self) -> bool:
        return False

    def adds(self, method: Method, at: Sources) -> Mapping[str, Adds]:
        return {"collect": Adds(writes=(RawReward,))}

    def wave_rows(self, ctx: StageContext, played: Sequence[PlayedEpisode]) -> RowsByType:
        rows = [
            RawReward(episode_id=each.episode.episode_id, family=each.episode.family, raw_reward=each.raw_reward)
            for each in played
            if each.episode.family in self.config
        ]
        return {RawReward: rows}
