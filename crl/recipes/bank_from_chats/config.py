"""The settings of a bank from chats, and what the recipe says of itself. No stage is imported here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from crl.config import BankConfig, BankUse, DistillConfig, EmbedderUse, Method, RecipeConfig, RoleUse
from crl.errors import BadInput
from crl.recipes.bank_from_chats.chats import ChatsConfig

EXTRACTOR = "extractor"


class BankFromChatsConfig(RecipeConfig):
    """Writes a bank from chats in one round. No model is trained."""

    BUILDER: ClassVar[str] = "crl.recipes.bank_from_chats.round:build"
    ENVIRONMENT: ClassVar[str] = "crl.recipes.bank_from_chats.chats:ChatsConfig"
    """What its families play, or rather read."""

    kind: Literal["bank_from_chats"] = "bank_from_chats"
    distill: DistillConfig = Field(DistillConfig(), description="What the extractor writes about a chat.")
    bank: BankConfig = Field(BankConfig(), description="Capacity and duplicates.")
    embedder_name: str = Field(
        "minilm", min_length=1, description="Embedder: minilm, lexical or a sentence-transformers model."
    )

    def roles(self) -> Mapping[str, RoleUse]:
        """The extractor alone."""
        return {EXTRACTOR: RoleUse(trained=False, batch=self.distill.batch)}

    def prompts(self) -> frozenset[str]:
        """That of distilling."""
        return frozenset({"distill"})

    def embedder(self) -> EmbedderUse:
        """That of the texts."""
        return EmbedderUse(self.embedder_name)

    def bank_use(self) -> BankUse:
        """The rules of the bank."""
        return BankUse(self.bank, self.distill.max_characters)

    def problems(self, method: Method) -> Iterator[BadInput]:
        """Families that name no chats, outputs that nothing compares, and near-duplicates, which nothing looks for."""
        for family in method.families:
            if not isinstance(family.environment, ChatsConfig):
                yield BadInput(
                    f"family {family.name} plays {family.environment.kind}, and this recipe reads chats",
                    expected=self.ENVIRONMENT,
                    where="method.families[].environment.kind",
                    next_step="start it with `crl bank build`",
                )
        if self.distill.outputs > 1:
            yield BadInput(
                f"{self.distill.outputs} outputs are to be written about each chat, and no game compares them",
                expected="one output of each chat",
                where="method.recipe.distill.outputs",
                next_step="leave it out",
            )
        if self.bank.duplicates == "near":
            yield BadInput(
                "near-duplicates are to be refused, and this recipe compares texts word for word",
                expected="duplicates: reject or keep",
                where="method.recipe.bank.duplicates",
                next_step="leave it out; a run that imports the bank may merge near-duplicates",
            )
