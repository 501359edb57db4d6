"""The rows of extractor outputs, which `crl/text/outputs.py` samples: what distilling and merging share.

Ids of rows derive from what they are made for: distillation `d-<episode>` (`d-<episode>-n<k>` for further outputs about
it) or `m-r<round>-<family>-<step>`, generation `g-<distillation>`, operation `<distillation>-o<index>`, entry
`x-<operation>`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from crl.config import DistillConfig
from crl.extractor.formats import ReasonCode
from crl.extractor.parse import ParsedOutput, parse_output
from crl.records import Distillation, Generation, Operation
from crl.text.outputs import Output, token_record

SeedOf = Callable[[str], np.random.SeedSequence]
"""Seed of the random stream of a distillation id."""


class Distilled(NamedTuple):
    """The rows of one extractor output."""

    distillation: Distillation
    operations: list[Operation]
    generation: Generation


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a wave of outputs is made: what all their rows have in common."""

    round: int
    stage: Literal["distill", "merge"]
    weights_digest: str
    form: Literal["json", "lines"]
    temperature: float


def generation_row(output: Output, origin: Origin) -> Generation:
    """The token record of a distillation or merge; without tokens where nothing was sampled."""
    return token_record(
        output,
        generation_id=generation_id_of(output.prompt.name),
        round=origin.round,
        stage=origin.stage,
        role="extractor",
        kind=origin.stage,
        weights_digest=origin.weights_digest,
        temperature=origin.temperature,
    )


def distillation_row(
    output: Output,
    origin: Origin,
    parsed: ParsedOutput,
    operations: int,
    *,
    family: str,
    episode_id: str | None = None,
    guiding_entry_id: str | None = None,
    source_entry_ids: Sequence[str] = (),
    turns: int | None = None,
    turns_shown: int | None = None,
    candidate: int = 0,
) -> Distillation:
    """What became of an output."""
    return Distillation(
        distillation_id=output.prompt.name,
        round=origin.round,
        kind=origin.stage,
        family=family,
        episode_id=episode_id,
        guiding_entry_id=guiding_entry_id,
        source_entry_ids=list(source_entry_ids),
        generation_id=generation_id_of(output.prompt.name),
        format=origin.form,
        reason_code=str(parsed.reason_code),
        verdict=parsed.verdict,
        operations=operations,
        turns=turns,
        turns_shown=turns_shown,
        candidate=candidate,
    )


def operation_row(
    distillation_id: str,
    index: int,
    origin: Origin,
    kind: str,
    family: str,
    *,
    entry_id: str | None = None,
    text: str | None = None,
    parents: Sequence[str] = (),
    episode_ids: Sequence[str] = (),
) -> Operation:
    """One operation. Without an `entry_id`, an add or a merge gets the id of the entry it creates."""
    operation_id = f"{distillation_id}-o{index}"
    if entry_id is None and kind in ("add", "merge"):
        entry_id = f"x-{operation_id}"
    return Operation(
        operation_id=operation_id,
        distillation_id=distillation_id,
        generation_id=generation_id_of(distillation_id),
        round=origin.round,
        index=index,
        kind=kind,
        family=family,
        entry_id=entry_id,
        parents=list(parents),
        episode_ids=list(episode_ids),
        text=text,
        embedder_cut=None,  # filled in where there is an embedder
    )


def generation_id_of(distillation_id: str) -> str:
    """Id of an output's token record."""
    return f"g-{distillation_id}"


def parsed_output(
    output: Output,
    origin: Origin,
    config: DistillConfig,
    examples: Set[str],
    *,
    guided: bool = False,
    source_count: int = 0,
) -> ParsedOutput:
    """What an output says (:func:`parse_output`), or on a prompt that does not fit."""
    if output.sampled is None:
        return ParsedOutput(ReasonCode.prompt_too_long, (), origin.stage)
    return parse_output(
        output.text,
        format=config.format,
        max_operations=config.max_operations,
        max_characters=config.max_characters,
        kind=origin.stage,
        guided=guided,
        source_count=source_count,
        truncated=output.truncated,
        thinking=output.thinking,
        examples=examples,
    )
