"""Whole rounds of real stages with models that are told what to say, in this process: seconds, and no torch.

The actor wins where it reads the experience `win`, and hardly ever without one. The extractor writes one of five
experiences; as critic the actor accepts, rejects or rewrites them by their words. Updates take no step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np

from crl.config import Experiment, Method, SamplingConfig
from crl.config.load import load_experiment
from crl.engine.execute import Attempt, execute_stage
from crl.envs import make_environment
from crl.policies.embedders import LexicalEmbedder
from crl.policies.sources import resolve_model
from crl.protocols import Factors, Reading, Sampled, StopReason, WholeTurns
from crl.records import Weights, rows_of
from crl.records.base import R
from crl.rounds.recipe import recipe_of
from crl.rounds.stage import Recipe
from crl.run.directory import RunDirectory
from crl.run.lease import Lease
from tests.unit.report.scripted import sha
from tests.unit.rollout.fakes import END, CharacterChat

ROOT = Path(__file__).parents[3]
CRITIC = {"system": "Judge.", "first": "Think of {experience} for {goal} {observation} at {success_rate}"}
VERDICTS = {"win": "ACCEPT", "fine": "ACCEPT", "lose": "REJECT", "vague": "REFINE: win", "odd": "hm"}
"""What the actor says of the experiences that the extractor writes."""
SETTINGS: dict[str, Any] = {
    "name": "played",
    "method.families.0.environment": {
        "kind": "frozenlake", "size_min": 2, "size_max": 2, "frozen_probability": 1.0, "max_turns": 4,
        "held_out_moves": 1,
    },
    "method.families.0.groups": 4,
    "method.families.0.evaluation_seeds.count": 8,
    "method.recipe.warm_start": None,
    "method.recipe.merge.every": 0,
    "method.recipe.bank.duplicates": "keep",
    "method.recipe.retrieval.threshold": -1.0,
    # Every experience gets its turn: they differ by a word, and counts decide.
    "method.recipe.retrieval.candidates": 256,
    "method.recipe.retrieval.count_weight": 10.0,
    "method.recipe.retrieval.index": "exact",
    "method.recipe.extractor_objective.batch": 4,
}  # fmt: skip

Answer = Callable[[str, np.random.Generator], str]


def experiment(**changes: Any) -> Experiment:
    """conf/tiny.yaml on maps of four cells; `changes` are dotted keys with `__` for the dot. Families that are given
    have no settings of those they replace."""
    changed = {key.replace("__", "."): value for key, value in changes.items()}
    given = "method.families" in changed
    kept = {key: value for key, value in SETTINGS.items() if not (given and key.startswith("method.families"))}
    return load_experiment(ROOT / "conf/tiny.yaml", {**kept, **changed})


class Session(WholeTurns):
    """Answers to what each row has read so far."""

    def __init__(self, prompts: Sequence[Sequence[int]], answer: Answer, seeds: Sequence[int]) -> None:
        self._ids, self._answer = [list(prompt) for prompt in prompts], answer
        self._streams = [np.random.default_rng(seed) for seed in seeds]

    def extend(self, pieces: Mapping[int, Sequence[int]]) -> None:
        for row, piece in pieces.items():
            self._ids[row].extend(piece)

    def replace(self, row: int, token_ids: Sequence[int], seed: int | None = None) -> None:
        self._ids[row] = list(token_ids)

    def sample(
        self,
        rows: Sequence[int],
        sampling: SamplingConfig,
        answers: Mapping[int, Any] | None = None,
    ) -> dict[int, Sampled]:
        found = {}
        for row in rows:
            read = "".join(chr(token) for token in self._ids[row] if token >= 32 or token == ord("\n"))
            text = self._answer(read, self._streams[row])
            ids = [*map(ord, text), END]
            self._ids[row].extend(ids)
            found[row] = Sampled(ids, [-0.5] * len(ids), StopReason.end_of_turn)
        return found

    def drop(self, rows: Sequence[int]) -> None:
        """Nothing to free."""

    def length(self, row: int) -> int:
        return len(self._ids[row])


class Policy:
    """A model that is told what to say."""

    def __init__(self, answer: Answer) -> None:
        self.chat, self.context, self._answer = CharacterChat(), 100_000, answer

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> Session:
        return Session(prompts, self._answer, seeds)


def act(read: str, generator: np.random.Generator) -> str:
    """The actor's answer: a verdict, or a move."""
    if read.startswith("Judge."):
        judged = re.search(r"Think of (\w+) for", read)
        assert judged is not None
        return VERDICTS[judged.group(1)]
    advice = re.search(r"Advice: (\w+)", read)
    if advice is not None and advice.group(1) != "win":
        return "wait"
    if advice is None and generator.random() < 0.85:
        return "wait"
    return move_to(read, "@GF")


def move_to(read: str, symbols: str) -> str:
    """A move toward the goal on the map of four cells that was read last, rows first. `symbols`: agent, goal, floor."""
    lines = re.findall(f"[{symbols}] [{symbols}]", read)[-2:]
    cells = {symbol: (row, column) for row, line in enumerate(lines) for column, symbol in enumerate(line.split())}
    at, to = cells[symbols[0]], cells[symbols[1]]
    if at[0] != to[0]:
        return "down" if to[0] > at[0] else "up"
    return "right" if to[1] > at[1] else "left"


def write(read: str, generator: np.random.Generator) -> str:
    """The extractor's answer."""
    return f"ADD: {generator.choice(sorted(VERDICTS))}"


class Trainer:
    """Takes no step, and remembers what it was to train on."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.stale: list[Set[str]] = []
        """Of each batch, the ids of samples that older weights wrote."""
        self.factors: list[dict[str, float]] = []
        """Of each batch, what its objectives are multiplied by."""
        self.shown: list[Any] = []
        """What it was to give log-probabilities of."""

    def read(self, samples: Sequence[Any], *, likeliest: int = 0) -> dict[str, Reading]:
        self.shown += samples
        tops = [[[0] * likeliest], [[-9.0] * likeliest]] if likeliest else [[], []]
        return {
            each.sample_id: Reading([-0.25] * sum(each.loss_mask), *(part * sum(each.loss_mask) for part in tops))
            for each in samples
        }

    def proximal(self, samples: Sequence[Any], objective: Any) -> dict[str, Any]:
        return {}

    def update(
        self,
        samples: Sequence[Any],
        objective: Any,
        *,
        stale: Set[str] = frozenset(),
        proximal: Any = None,
        factors: Factors | None = None,
    ) -> dict[str, float]:
        self.batches.append(list(samples))
        if callable(factors):
            norms = {"grpo": 3.0, "reverse_kl": 0.5, "nll": 2.0}
            factors = factors({kind: norms[kind] for kind in {each.objective for each in samples}})
        self.factors.append(dict(factors or {}))
        self.stale.append(stale)
        return {"samples": float(len(samples)), "stepped": 0.0}

    def save(self, directory: Path) -> None:
        raise AssertionError("no step was taken")


class Services:
    """What the stages ask an engine for."""

    rank = 0

    def __init__(self, made: Experiment) -> None:
        self._families = {family.name: family for family in made.method.families}
        self._environments: dict[str, Any] = {}
        self._policies = {"actor": Policy(act), "extractor": Policy(write)}
        self.trainers = {"actor": Trainer(), "extractor": Trainer()}

    def environment(self, family: str, round_number: int) -> Any:
        wanted = self._families[family].in_round(round_number)
        return self._environments.setdefault(wanted.model_dump_json(), make_environment(wanted))

    def policy(self, role: str, weights: Weights) -> Policy:
        return self._policies[role]

    def trainer(self, role: str, weights: Weights) -> Trainer:
        return self.trainers[role]

    def trained(self, role: str, weights: Weights) -> None:
        """Nothing moved."""

    def embedder(self) -> LexicalEmbedder:
        return LexicalEmbedder()

    def model_digest(self, role: str) -> str:
        return sha(role)

    def model_path(self, role: str) -> Path:
        return resolve_model("tiny").path


def one_by_one(recipe: Recipe, method: Method, rounds: int) -> list[tuple[int, str]]:
    """Every stage of a run, one round after the other."""
    return [(number, stage.name) for number in range(rounds + 1) for stage in recipe.stages_of(method, number)]


class Played:
    """A run of so many rounds."""

    def __init__(
        self, root: Path, made: Experiment, rounds: int, services: Services | None = None,
        order: Callable[[Recipe, Method, int], Iterable[tuple[int, str]]] | None = None,
    ) -> None:  # fmt: skip
        self.run = RunDirectory.create_or_open(made, root)
        self.method, self.rounds = self.run.method, rounds
        self.recipe = recipe_of(self.method)
        self.services: Any = services or Services(made)
        with Lease.acquire(self.run.path, seconds=600) as lease:
            for number, stage in (order or one_by_one)(self.recipe, self.method, rounds):
                execute_stage(
                    self.run, self.recipe, number, stage, attempt=Attempt(token=lease.token), services=self.services
                )

    def rows(self, row_type: type[R], stage: str, number: int) -> list[R]:
        """Rows of a stage of a round."""
        return rows_of(row_type, self.run.read(number, stage, row_type))

    def tables(self, number: int, stage: str) -> set[str]:
        """Tables that a stage wrote."""
        return {Path(name).stem for name in self.run.manifest(number, stage).digested.files}

    def digests(self) -> dict[str, str]:
        """Digest of every stage, by `1/collect`."""
        return {
            f"{number}/{stage}": self.run.manifest(number, stage).digest
            for number in range(self.rounds + 1)
            for stage in self.run.complete_stages(number)
        }
