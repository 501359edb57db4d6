"""The settings of WebShop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import ConfigDict, Field, model_validator

from crl.config.environments import EnvironmentConfig, HeldOutFrom

if TYPE_CHECKING:
    from crl.envs.webshop.environment import WebShopEnvironment


class WebShopConfig(EnvironmentConfig):
    """A web shop: find a product with the qualities, options and price asked for, and buy it."""

    model_config = ConfigDict(title="WebShop")

    kind: Literal["webshop"] = "webshop"
    catalogue: Literal["own", "small", "full"] = Field(
        "own",
        description="What the shop sells. own: a catalogue made for this project, which needs no data; small and full: "
        "the original site's 1,000 products, or all of them.",
    )
    directory: str | None = Field(
        None,
        min_length=1,
        description="Where the original site's files are; null: $WEBSHOP_DATA, else ~/.cache/webshop.",
    )
    products: int | None = Field(
        None,
        ge=1,
        le=2_000_000,
        description="The first so many products; null: 1,000 of the catalogue own, all of another.",
    )
    goals: Literal["synthetic", "human"] = Field(
        "synthetic",
        description="synthetic: an instruction for each combination of a product's options; human: those that people "
        "wrote (items_human_ins.json), not for the catalogue own.",
    )
    view: Literal["text", "rich", "short"] = Field(
        "text",
        description="How pages are written. text and rich: the original site's modes text and text_rich; short: our "
        "own, for small contexts (`prompts: webshop`).",
    )
    attributes_page: bool = Field(
        True, description="Whether a product has a page of its attributes; the original shows it only on demand."
    )
    tell_missing: bool = Field(
        False, description="Whether the last page says what a purchase lacked; the original shows its score only."
    )
    max_turns: int = Field(15, ge=1, le=1000, description="Turns before an episode counts as failed.")
    held_out_split: Literal["test", "development"] = Field(
        "test",
        description="Goals of the held-out seeds: the first 500 of all (test) or the 1,000 behind them (development). "
        "Of 1,500 goals or less, the first quarter or the second.",
    )
    held_out_from: HeldOutFrom = 1_000_000

    @model_validator(mode="after")
    def _own_goals(self) -> WebShopConfig:
        if self.catalogue == "own" and self.goals == "human":
            raise ValueError("goals: human needs catalogue: small or full; the catalogue own has synthetic goals only")
        return self

    def make(self) -> WebShopEnvironment:
        """A wave of visits. Raises BadInput where rapidfuzz or the data is missing, or a record of it is malformed."""
        from crl.envs.webshop.environment import WebShopEnvironment

        return WebShopEnvironment(self)
