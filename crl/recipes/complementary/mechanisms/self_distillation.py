"""Self-distillation (`recipe.self_distillation`): episodes that went well are trained on without their experiences too.

Collecting keeps what such an episode looks like with all experience text stripped from its context; credit makes
next-token samples of those that are chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from crl.config import Method, SelfDistillationConfig
from crl.errors import BadInput
from crl.recipes.complementary.config import ACTOR, config_of
from crl.recipes.complementary.mechanisms import Adds, Mechanism, RowsByType, Sources
from crl.records import StrippedContext
from crl.rollout.play import PlayedEpisode
from crl.rollout.stripped import stripped_context
from crl.rounds.context import StageContext
from crl.rounds.weights import weights_of


class SelfDistillation(Mechanism):
    """`recipe.self_distillation`."""

    key = "recipe.self_distillation"
    after_rollouts = True
    config: SelfDistillationConfig

    @property
    def needs_guided(self) -> bool:
        return self.config.guided_only

    def problems(self, method: Method) -> Iterator[BadInput]:
        recipe = config_of(method)
        if ACTOR not in recipe.TRAINED:
            yield BadInput(
                f"recipe {recipe.kind} does not train the actor, so it distills nothing into it",
                expected="a recipe that trains the actor",
                where="method.recipe.self_distillation",
                next_step="set method.recipe.self_distillation to null, or choose another recipe",
            )
        if self.config.episodes == "beats_free" and recipe.always_guided(method):
            yield BadInput(
                "guided episodes are to beat unguided rollouts of the same group, and guided_share leaves none",
                expected="a share that leaves some free, or episodes: wins",
                where="method.recipe.self_distillation.episodes",
                next_step="lower recipe.guided_share, or set self_distillation.episodes to wins",
            )

    def adds(self, method: Method, at: Sources) -> Mapping[str, Adds]:
        return {"collect": Adds(writes=(StrippedContext,))}

    def kept(self, ctx: StageContext, played: Sequence[PlayedEpisode]) -> RowsByType:
        chat = ctx.services.policy("actor", weights_of(ctx, "actor")).chat
        guided = [each for each in played if each.episode.guided]
        return {StrippedContext: [stripped_context(chat, each, ctx.method) for each in guided]}
