"""The settings of a bank from chats, and the file that its task family names. No stage is imported here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from crl.config import BankConfig, BankUse, DistillConfig, EmbedderUse, Method, RecipeConfig, RoleUse
from crl.config.base import unset
from crl.config.environments import EnvironmentConfig
from crl.errors import BadInput
from crl.paths import possible_path, short
from crl.protocols import FreeText, Start
from crl.records import OutsideRows, table_of

EXTRACTOR = "extractor"
_CORRECT = "correct the file, or name its columns: --set method.families.0.environment.messages=COLUMN"


class BankFromChatsConfig(RecipeConfig):
    """A bank that is written from chats in one round. No model is trained."""

    BUILDER: ClassVar[str] = "crl.recipes.bank_from_chats.round:build"

    kind: Literal["bank_from_chats"] = "bank_from_chats"
    distill: DistillConfig = Field(DistillConfig(), description="What the extractor writes of a chat.")
    bank: BankConfig = Field(BankConfig(), description="Capacity, and what is a duplicate.")
    embedder_name: str = Field(
        "minilm", min_length=1, description="Embedder of the texts: minilm, lexical or a sentence-transformers model."
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
        """Families that name no chats, and near-duplicates, which nothing here looks for."""
        for family in method.families:
            if not isinstance(family.environment, ChatsConfig):
                yield BadInput(
                    f"family {family.name} plays {family.environment.kind}, and this recipe reads chats",
                    expected=ChatsConfig.model_fields["kind"].default,
                    where="method.families[].environment.kind",
                    next_step="start it with `crl bank build`",
                )
        if self.bank.duplicates == "near":
            yield BadInput(
                "near-duplicates are to be refused, and this recipe compares texts word for word",
                expected="duplicates: reject or keep",
                where="method.recipe.bank.duplicates",
                next_step="leave it out; a run that imports the bank may merge near-duplicates",
            )


class ChatsConfig(EnvironmentConfig):
    """A file of chats. They were held already: nothing is played in this environment."""

    kind: str = "crl.recipes.bank_from_chats.config:ChatsConfig"
    data: str = Field(min_length=1, description="A file (.jsonl, .json, .csv, .parquet, .arrow), or a folder of such.")
    split: str | None = Field(None, exclude_if=unset, description="Which split of a folder that has several.")
    messages: str | None = Field(
        None, exclude_if=unset, description="Column of the messages; null: messages, conversations, or prompt with "
        "completion.",
    )  # fmt: skip
    reward: str = Field("reward", min_length=1, description="Column of the rewards; it may be missing.")
    success: str = Field("success", min_length=1, description="Column that says whether a chat succeeded.")
    success_at: float = Field(
        1.0, ge=-1_000_000, le=1_000_000, description="Without such a column, the least reward of a success."
    )

    @property
    def path(self) -> Path:
        """Where the chats are. Raises BadInput where nothing is."""
        path = possible_path(self.data, "the file of chats", where="--from", home=True)
        if not path.exists():
            raise BadInput(
                f"there is no file {short(path)} in {Path.cwd()}",
                expected="a file or a folder of chats",
                where="--from",
                next_step="correct the path: it begins in the folder that crl is started in",
            )
        return path

    def data_files(self) -> Mapping[str, Path]:
        """The chats, as they are named."""
        return {self.data: self.path}

    def outside_rows(self) -> Iterator[OutsideRows]:
        """Every chat, those that are left out too. Raises BadInput where none can be used."""
        from crl.recipes.bank_from_chats.chats import OK, Chat, read

        found = read(self)
        if not any(chat.reason_code == OK for chat in found):
            first = found[0] if found else None
            why = "it is empty" if first is None else f"{first.location}: {first.reason_code}: {first.detail}"
            raise BadInput(
                f"{short(self.data)} has no chat that can be used: {why}",
                expected="records with messages, one of which is the assistant's",
                where="--from",
                next_step=_CORRECT,
            )
        yield OutsideRows(Chat, table_of(Chat, found), self.data, _CORRECT)

    def make(self) -> Any:
        """An environment for the checks before work starts."""
        return _Unplayed()


class _Unplayed:
    """Starts, and goes no further."""

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        return [Start("Learn from chats.", "", FreeText("nothing")) for _ in seeds]

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Any]:
        raise BadInput("chats are read, not played", next_step="begin an experiment with their bank: crl bank import")

    def oracle(self, slot: int) -> None:
        """Nothing is known."""

    def close(self) -> None:
        """Nothing is held."""
