"""WebShop as a batched text environment: its settings, and a wave of visits to one site."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from crl.config.base import unset
from crl.config.environments import EnvironmentConfig, HeldOutFrom
from crl.envs.slots import Slots, stepped, with_ending
from crl.protocols import FreeText, Lesson, Start, Step, StopReason
from crl.records import Episode, OutsideRows, Turn
from crl.worlds.webshop.catalog import PRODUCTS, Catalog, catalog, files_of
from crl.worlds.webshop.goals import NO_LIMIT, Goal
from crl.worlds.webshop.lessons import KIND, NOT_MET, PRICE, lesson_of
from crl.worlds.webshop.oracle import Plan, next_action, plan_for
from crl.worlds.webshop.pages import page_text
from crl.worlds.webshop.products import outside_rows
from crl.worlds.webshop.reward import nouns, rapidfuzz, tagged_nouns
from crl.worlds.webshop.site import Site, Visit

_SHORT_FORM = FreeText("search[words] or click[x], where x stands in brackets on the page")
_MOST_NAMED = 20
"""What can be clicked that an answer to an impossible action names."""


class WebShopConfig(EnvironmentConfig):
    """A web shop: find a product with the requested qualities, options and price, and buy it."""

    model_config = ConfigDict(title="WebShop")

    PATHS: ClassVar[tuple[str, ...]] = ("directory",)

    kind: Literal["webshop"] = "webshop"
    catalog: Literal["own", "small", "full"] = Field(
        "own",
        description="What the shop sells. own: a catalog shipped with crl; small: the original site's 1,000 "
        "products; full: all of them.",
    )
    directory: str | None = Field(
        None,
        min_length=1,
        description="Folder of the original site's files; null: $WEBSHOP_DATA, else ~/.cache/webshop.",
    )
    products: int | None = Field(
        None,
        ge=1,
        le=2_000_000,
        description="The first N products; null: 1,000 of own, all of the others.",
    )
    goals: Literal["synthetic", "human"] = Field(
        "synthetic",
        description="synthetic: an instruction per combination of a product's options; human: instructions that "
        "people wrote (items_human_ins.json; small and full only).",
    )
    view: Literal["text", "rich", "short"] = Field(
        "text",
        description="How pages are written. text, rich: the original site's text and text_rich; short: for small "
        "contexts (`prompts: webshop`).",
    )
    attributes_page: bool = Field(
        True, description="Give each product a page of attributes. The original shows it on demand only."
    )
    show_missing: bool = Field(
        False, description="Say on the last page what a purchase lacked. The original shows only a score."
    )
    spacy_model: str | None = Field(
        None,
        min_length=1,
        exclude_if=unset,
        description="spaCy model for the nouns of titles, such as en_core_web_sm: the original site's exact "
        "rewards. null: crl's word lists (docs/environments.md says how often they differ).",
    )
    max_turns: int = Field(15, ge=1, le=1000, description="Turns after which an episode is lost.")
    held_out_split: Literal["test", "development"] = Field(
        "test",
        description="Held-out goals. test: the first 500; development: the next 1,000. With at most 1,500 goals, "
        "a quarter each, by a hash of their words.",
    )
    held_out_from: HeldOutFrom = 1_000_000

    @model_validator(mode="after")
    def _own_goals(self) -> WebShopConfig:
        if self.catalog == "own" and self.goals == "human":
            raise ValueError("goals: human needs catalog: small or full; the catalog own has synthetic goals only")
        return self

    @property
    def held_out_levels(self) -> int | None:
        """The number of goals of the held-out split. Raises BadInput where the data is missing."""
        if self.held_out_from is None:
            return None
        return len(self.sold().goals.of_split(self.held_out_split))

    def sold(self) -> Catalog:
        """The catalog. Raises BadInput where its data is missing, or a record of it is malformed."""
        return catalog(self.catalog, self.goals, self.products, self.directory)

    def data_files(self) -> dict[str, Path]:
        """The files of the original data. Raises BadInput where one is missing."""
        return files_of(self.catalog, self.goals, self.directory)

    def outside_rows(self) -> Iterator[OutsideRows]:
        """The products of the original data. Raises BadInput as :meth:`sold`."""
        if self.catalog != "own":
            yield outside_rows(self.sold().products, PRODUCTS[self.catalog])

    def make(self) -> WebShopEnvironment:
        """A wave of visits. Raises BadInput where rapidfuzz or the data is missing, or a record of it is malformed."""
        return WebShopEnvironment(self)


@dataclass
class _Slot:
    visit: Visit
    plan: Plan | None = None
    """The oracle's, made when it is first asked."""
    turns: int = 0
    done: bool = False


class WebShopEnvironment(Slots[_Slot]):
    """A wave of visits (protocols `Environment`, `Leveled`, `Instructive`). The reward is that of the purchase, 0 to 1;
    success is a reward of 1.

    Buying ends an episode, as a failure unless it is worth 1; so does the turn limit, with 0. An action that is not
    possible spends a turn and changes nothing.
    """

    def __init__(self, config: WebShopConfig) -> None:
        """Raises BadInput where rapidfuzz or the data is missing, or a record of it is malformed."""
        rapidfuzz()
        super().__init__()
        self.config = config
        nouns_of = nouns if config.spacy_model is None else tagged_nouns(config.spacy_model)
        self.site = Site(config.sold(), attributes_page=config.attributes_page, nouns_of=nouns_of)

    def goal_of(self, seed: int) -> Goal:
        """The goal of a seed. Raises BadInput where the catalog has none on its side."""
        goals = self.site.catalog.goals
        return goals.get(goals.of_seed(seed, self.config.held_out_from, self.config.held_out_split))

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start `len(seeds)` episodes, slot i with seed i."""
        self._slots = [_Slot(Visit(self.goal_of(seed))) for seed in seeds]
        return [Start(slot.visit.goal.text, self._page(slot), self._form(slot)) for slot in self._slots]

    def _page(self, slot: _Slot) -> str:
        return page_text(self.site, slot.visit, self.config.view)

    def _form(self, slot: _Slot) -> FreeText:
        if self.config.view == "short":
            return _SHORT_FORM
        clickable = self.site.clickable(slot.visit)
        return FreeText(f"search[words] or click[x] with x one of: {', '.join(clickable)}" if clickable
                        else "search[words]")  # fmt: skip

    def _step(self, slot: _Slot, action: str | None) -> Step:
        visit = slot.visit
        legal = self.site.act(visit, action)
        worth = 0.0 if visit.reward is None else visit.reward.total
        reason = None
        if visit.reward is not None:
            reason = StopReason.success if worth == 1 else StopReason.failure
        elif slot.turns >= self.config.max_turns:
            reason = StopReason.turn_limit
        observation = self._page(slot)
        if visit.reward is not None and worth < 1 and self.config.show_missing:
            observation += f"\n{NOT_MET}{'; '.join(missing(visit))}."
        if reason is StopReason.turn_limit:
            observation = with_ending(observation, reason)
        feedback = "" if legal else self._refusal(slot)
        return stepped(slot, reason, observation, self._form(slot), feedback, legal=legal, reward=worth)

    def _refusal(self, slot: _Slot) -> str:
        clickable = self.site.clickable(slot.visit)
        if not clickable:
            return "That is not possible on this page. Possible: search[words]."
        named = ", ".join(clickable[:_MOST_NAMED]) + (", …" if len(clickable) > _MOST_NAMED else "")
        return f"That is not possible on this page. Possible: search[words] or click[x] with x one of: {named}."

    def oracle(self, slot: int) -> str | None:
        """The next action of a shopper that knows the goal; None when the episode is done or nothing can be found."""
        state = self._slots[slot]
        if state.done:
            return None
        state.plan = state.plan or plan_for(self.site, state.visit.goal)
        return None if state.plan is None else next_action(self.site, state.visit, state.plan)

    def content(self, slot: int) -> str:
        """The instruction of a slot without its price limit."""
        return self._slots[slot].visit.goal.content

    def lesson(self, episode: Episode, turns: Sequence[Turn]) -> Lesson:
        """What a visit teaches, for demonstrations."""
        return lesson_of(episode, turns)


def missing(visit: Visit) -> list[str]:
    """What a purchase lacks, in words."""
    wanted, reward = visit.goal.wanted, visit.reward
    assert reward is not None, "something was bought"
    lacking = [name for name, met in zip(wanted.attributes, reward.attributes_met, strict=True) if not met]
    options = [option if isinstance(option, str) else f"{option[0]}: {option[1]}" for option in wanted.options]
    lacking += [option for option, met in zip(options, reward.options_met, strict=True) if not met]
    if not reward.price_met and wanted.price_upper != NO_LIMIT:
        lacking.append(f"{PRICE} {wanted.price_upper:.2f} dollars")
    if reward.kind < 1:
        lacking.append(f"{KIND} ({wanted.query})" if wanted.query else KIND)
    return lacking
