"""A run told step by step: a test says what was played and what the extractor asked for, the bank's stages are real.

Everything goes through the record's own writer, so such a run verifies, and any reader of runs can be tried on it. No
model takes part: prompts and outputs are plain words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from crl.config import Experiment
from crl.config.load import load_experiment
from crl.policies.embedders import LexicalEmbedder
from crl.records import (
    Distillation,
    Episode,
    Evaluation,
    Generation,
    Operation,
    Resemblance,
    Retrieval,
    RetrievalCount,
    Row,
    Weights,
    table_of,
)
from crl.rounds.context import StageContext
from crl.rounds.recipe import recipe_of, recorded_bank
from crl.run.directory import RunDirectory
from crl.run.lease import Lease
from crl.run.seeds import seed_for

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Ask:
    """One output of the extractor that asks for one operation."""

    kind: str
    text: str | None = None
    entry: str | None = None
    parents: tuple[str, ...] = ()
    episodes: tuple[int, ...] = (0,)
    """Members of the round's episodes it was distilled from."""
    family: str = "lake"
    cut: bool = False
    """Whether the embedder reads only the beginning of the text."""


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def experiment(name: str = "scripted", families: Sequence[str] = ("lake", "pond"), **overrides: Any) -> Experiment:
    """conf/tiny.yaml with these families and a merge in every round; nothing is trained."""
    settings = {"method.recipe.merge.every": 1, "method.recipe.warm_up_rounds": 1000, "method.recipe.warm_start": None}
    merged = {**settings, **{key.replace("__", "."): value for key, value in overrides.items()}}
    loaded = load_experiment(ROOT / "conf/tiny.yaml", merged)
    listed = [loaded.method.families[0].model_copy(update={"name": each}) for each in families]
    return loaded.model_copy(update={"name": name, "method": loaded.method.model_copy(update={"families": listed})})


class Services:
    """What the bank's stages ask an engine for."""

    def __init__(self, embedder_digest: str = sha("lexical")) -> None:
        self._digest = embedder_digest

    def embedder(self) -> LexicalEmbedder:
        return LexicalEmbedder()

    def model_digest(self, role: str) -> str:
        return self._digest if role == "embedder" else sha("tiny")


class ScriptedRun:
    """Context manager: holds the run's lease while rounds are added."""

    def __init__(self, root: Path, made: Experiment | None = None, services: Any = None) -> None:
        made = made or experiment()
        self.run = RunDirectory.create_or_open(made, root)
        self.path, self.method = self.run.path, self.run.method
        self.recipe = recipe_of(self.method)
        self.services = services or Services()
        self.newest = -1
        self._counts: dict[str, RetrievalCount] = {}

    def __enter__(self) -> ScriptedRun:
        self._lease = Lease.acquire(self.path, seconds=60).__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lease.__exit__(kind, error, trace)

    def initialize(self) -> ScriptedRun:
        """Round 0."""
        self._stage(0, "initialize")
        self._write(0, "evaluate")
        self.newest = 0
        return self

    def play(
        self,
        *asks: Ask,
        guided: Sequence[tuple[str | tuple[str, ...], bool]] = (),
        free: Sequence[bool] = (True, False),
        merges: Sequence[Ask] = (),
        evaluated: Sequence[tuple[str | tuple[str, ...], bool]] = (),
        near: Sequence[tuple[str, str]] = (),
        family: str = "lake",
    ) -> list[str]:
        """One round: games guided by (entry or entries, won), free games, then what the extractor asks; `near` are
        texts that resemble each other. Returns the ids of the entries that `asks` and `merges` create or change, in
        order."""
        number = self.newest + 1
        bank = recorded_bank(self.run, self.recipe, number - 1)
        episodes, retrievals = [], []
        for member, (named, won) in enumerate([*guided, *(((), each) for each in free)]):
            names = [named] if isinstance(named, str) else list(named)
            rows = bank.rows_of(names)
            assert None not in rows, f"{names} are not all in the bank of round {number - 1}"
            entries = bank.taken([row for row in rows if row is not None])
            episode_id = f"r{number:04d}-{family}-g0000-m{member:03d}"
            episodes.append(
                Episode(
                    episode_id=episode_id, round=number, family=family, group=0, member=member, environment_seed=number,
                    guided=bool(entries),
                    entry_ids=names, content_digests=[entry.content_digest for entry in entries],
                    experiences=["as the bank has it"] * len(entries), goal="reach the goal", success=won,
                    reward=float(won), turns=3, invalid_actions=0, tokens_read=30, tokens_sampled=6,
                    stop_reason="success" if won else "turn_limit",
                    last_observation="the end", error=None, generation_ids=[f"a-{episode_id}"],
                )
            )  # fmt: skip
            for rank, entry in enumerate(entries):
                earlier = self._counts.get(entry.entry_id)
                count = earlier.count if earlier else 0
                retrievals.append(
                    Retrieval(
                        episode_id=episode_id, round=number, bank_round=number - 1, family=family,
                        entry_id=entry.entry_id, content_digest=entry.content_digest,
                        generation_id=entry.generation_id, rank=rank, similarity=0.5 - rank / 8, rank_score=1.0 - rank,
                        count=count, recent=False, score=1.0 - rank, chosen=True,
                    )
                )  # fmt: skip
                self._counts[entry.entry_id] = RetrievalCount(
                    entry_id=entry.entry_id, count=count + 1, last_round=number
                )
        distilled = self._outputs(number, "distill", asks, episodes)
        merged = self._outputs(number, "merge", merges, episodes)
        self._write(number, "plan", retrievals, list(self._counts.values()))
        self._write(number, "collect", episodes)
        alike = [Resemblance(content_digest=sha(a), other_digest=sha(b), similarity=0.97) for a, b in near]
        self._write(number, "distill", *distilled, alike)
        self._write(number, "merge", *merged)
        self._stage(number, "consolidate")
        self._stage(number, "credit")
        self._write(number, "update_extractor", [self._weights("extractor", number)])
        self._write(number, "evaluate", [self._evaluation(number, *each) for each in enumerate(evaluated)])
        self.newest = number
        return [row.entry_id or "" for row in [*distilled[1], *merged[1]]]

    def _outputs(
        self, number: int, stage: str, asks: Sequence[Ask], episodes: Sequence[Episode]
    ) -> tuple[list[Distillation], list[Operation], list[Generation]]:
        rows: tuple[list[Distillation], list[Operation], list[Generation]] = ([], [], [])
        for index, ask in enumerate(asks):
            output = f"{stage[0]}-r{number:04d}-{index}"
            operation_id = f"{output}-o0"
            sources = [] if stage == "merge" else [episodes[member].episode_id for member in ask.episodes]
            entry_id = ask.entry or (f"x-{operation_id}" if ask.kind in ("add", "merge") else None)
            parents = list(ask.parents) or ([ask.entry] if ask.kind == "update" and ask.entry else [])
            rows[0].append(
                Distillation(
                    distillation_id=output, round=number, kind=stage, family=ask.family,
                    episode_id=sources[0] if sources else None, guiding_entry_id=ask.entry,
                    source_entry_ids=list(ask.parents), generation_id=output, format="lines", reason_code="ok",
                    verdict=ask.kind if ask.kind in ("add", "update", "return", "merge") else "mixed", operations=1,
                    turns=3 if stage == "distill" else None, turns_shown=3 if stage == "distill" else None,
                )
            )  # fmt: skip
            rows[1].append(
                Operation(
                    operation_id=operation_id, distillation_id=output, generation_id=output, round=number, index=0,
                    kind=ask.kind, family=ask.family, entry_id=entry_id, parents=parents, episode_ids=sources,
                    text=ask.text, embedder_cut=None if ask.text is None else ask.cut,
                )
            )  # fmt: skip
            rows[2].append(
                Generation(
                    generation_id=output, round=number, stage=stage, role="extractor", kind=stage,
                    weights_digest=self._weights("extractor", number - 1).weights_digest, temperature=1.0,
                    token_ids=[1, 2], loss_mask=[0, 1], logprobs=[0.0, -0.5], prompt=f"prompt of {output}",
                    output=f"{ask.kind.upper()}: {ask.text}", stop_reason="end_of_turn",
                )
            )  # fmt: skip
        return rows

    def _weights(self, role: str, number: int) -> Weights:
        return Weights(
            role=role, round=number, updates=number, source="tiny", base_digest=sha("tiny"),
            checkpoint=f"rounds/{number:04d}/update_{role}/checkpoint" if number else None,
            weights_digest=sha(f"{role} {number}") if number else sha(sha("tiny")),
        )  # fmt: skip

    def _evaluation(self, number: int, index: int, shown: tuple[str | tuple[str, ...], bool]) -> Evaluation:
        named, won = shown
        names = [named] if isinstance(named, str) else list(named)
        return Evaluation(
            evaluation_id=f"e{number:04d}/with_bank/lake-s{index}", round=number, condition="with_bank", family="lake",
            environment_seed=index, guided=True, entry_ids=names, success=won,
            reward=float(won), turns=1, invalid_actions=0, tokens_read=10, tokens_sampled=2,
            stop_reason="success" if won else "turn_limit",
            actions=["left"],
        )  # fmt: skip

    def _write(self, number: int, stage: str, *tables: Sequence[Row]) -> None:
        with self.run.begin(number, stage, token=self._lease.token) as writer:
            for rows in tables:
                if rows:
                    writer.write(type(rows[0]), table_of(type(rows[0]), rows))
            writer.commit(inputs=[], method_digest=self.run.method_digest, seed=0, provenance={})

    def _stage(self, number: int, name: str) -> None:
        """Run a stage of the recipe as the engine does."""
        with self.run.begin(number, name, token=self._lease.token) as writer:
            stage = self.recipe.stage(self.method, number, name)
            context = StageContext(
                method=self.method, recipe=self.recipe, stage=stage, round_number=number, reader=self.run,
                writer=writer, services=self.services, progress=lambda metrics: None,
            )  # fmt: skip
            assert stage.run is not None
            stage.run(context)
            entropy = seed_for(self.method.seed, number, name).entropy
            seed = [int(word) for word in entropy] if isinstance(entropy, list | tuple) else 0
            writer.commit(
                inputs=sorted(context.inputs), method_digest=self.run.method_digest, seed=seed,
                provenance=dict(context.provenance),
            )  # fmt: skip
