"""reasoning-gym: procedural tasks, one question and one answer in free text, paid by the package's own scorer.

Each seed draws its own item: the dataset is made for that item alone, so an item depends on its seed and the dataset's
parameters. What is held out is decided by the question (`crl/envs/levels.py`). The answer is what the actor wrote, or
the last `<answer>…</answer>` in it. Success is the scorer's full mark, 1; a part of it is the reward and no success.

Some scorers read the answer with sympy, which may take as long as the answer asks for: `step_time_limit_seconds` of the
family ends such an episode.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from crl.config.environments import HeldOutFrom
from crl.envs.levels import Drawn, Levels
from crl.errors import BadInput
from crl.protocols import Actions, FreeText
from crl.worlds.bridges.packages import WHERE, Argument, BridgeConfig, Real, Whole, check_known, package
from crl.worlds.bridges.wave import Episode, GlobalStreams, LeveledWave, Outcome, seed_of

Parameter = Argument | list[str] | list[Whole] | list[Real] | dict[str, Any]
"""What a dataset's parameter may be."""

_GOAL = "Answer the question."
_FORM = FreeText("the answer and nothing else")
_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.IGNORECASE | re.DOTALL)
_DRAWS = 200
"""Draws of a seed after which there is no such level; of many levels one in four is held out."""
_FULL_MARK = 1 - 1e-9


class ReasoningGymConfig(BridgeConfig):
    """A dataset of reasoning-gym: one question, one answer, the package's scorer."""

    model_config = ConfigDict(title="reasoning-gym")

    PACKAGES: ClassVar[tuple[str, ...]] = ("reasoning-gym",)

    kind: Literal["reasoning_gym"] = "reasoning_gym"
    dataset: str = Field(description="Name of the dataset, such as chain_sum.")
    parameters: dict[str, Parameter] = Field(
        default_factory=dict, description="Its parameters, except `seed` and `size`."
    )
    held_out_from: HeldOutFrom = 1_000_000

    def make(self) -> LeveledWave:
        """A wave of questions. Raises BadInput where the package, the dataset or a parameter is not there."""
        return LeveledWave(_Questions(self).begin, max_turns=1)


class _Questions:
    """The items of one dataset, by seed."""

    def __init__(self, config: ReasoningGymConfig) -> None:
        self._config = config
        self._factory = package("reasoning_gym.factory", extra="reasoning_gym")
        package("reasoning_gym", extra="reasoning_gym")  # registers the datasets
        known = self._factory.DATASETS
        check_known(config.dataset, known, "reasoning-gym dataset", field="dataset")
        if config.dataset in UNUSABLE:
            raise BadInput(
                f"the dataset {config.dataset!r} {UNUSABLE[config.dataset]}",
                expected="a dataset whose items and scores follow from the seed",
                where=f"{WHERE}.dataset",
                next_step="choose another dataset",
            )
        taken = sorted({"seed", "size"} & config.parameters.keys())
        if taken:
            raise BadInput(
                f"parameters hold {', '.join(taken)}",
                expected="parameters that shape an item: the seed of an episode chooses it",
                where=f"{WHERE}.parameters",
                next_step=f"remove {', '.join(taken)}",
            )
        self._scorer = self._dataset(0)
        self._levels = Levels(
            self._draws,
            held_out_from=config.held_out_from,
            fewest_moves=1,
            draws=_DRAWS,
            where=f"reasoning-gym dataset {config.dataset}",
            next_step="choose parameters with more items, or set held_out_from: null: then its evaluation is on "
            "questions that training knows",
        )

    def _dataset(self, seed: int) -> Any:
        """The dataset whose first item is that of a seed."""
        try:
            return self._factory.create_dataset(self._config.dataset, **self._config.parameters, seed=seed, size=1)
        except Exception as error:  # an assertion of its config, or a parameter that it does not have
            raise BadInput(
                f"the dataset {self._config.dataset!r} cannot be made: {type(error).__name__}: {error}",
                expected="parameters of its config class",
                where=f"{WHERE}.parameters",
                next_step="correct the parameters",
            ) from error

    def _draws(self, seed: int) -> Iterator[Drawn]:
        for attempt in count():
            number = seed_of(seed, attempt)
            # A few datasets draw from NumPy's global generator.
            with GlobalStreams(number).installed():
                entry = self._dataset(number)[0]
                yield Drawn(entry, str(entry["question"]))

    def begin(self, slot: int, seed: int) -> _Question:
        """The question of a seed."""
        return _Question(self._levels.of(seed), self._scorer)


class _Question(Episode):
    goal = _GOAL

    def __init__(self, item: Drawn, scorer: Any) -> None:
        self._item, self._scorer = item, scorer

    def observation(self) -> str:
        return self.content

    def actions(self) -> Actions:
        return _FORM

    def act(self, action: str) -> Outcome:
        found = _ANSWER.findall(action)
        answer = found[-1].strip() if found else action
        score = self._score(answer)
        if score is None:
            return Outcome(over=True, legal=False, feedback="That is no answer of the form asked for.")
        return Outcome(over=True, success=score >= _FULL_MARK, reward=score)

    def _score(self, answer: str) -> float | None:
        """The scorer's mark; None where it could not read the answer: it is the answer that broke, not the game."""
        try:
            return float(self._scorer.score_answer(answer=answer, entry=self._item.state))
        except MemoryError:
            raise
        except Exception:
            return None

    def oracle(self) -> str | None:
        answer = str(self._item.state.get("answer"))
        # Of a few datasets it is a note for people, or an example that the scorer does not take.
        return answer if (self._score(answer) or 0.0) >= _FULL_MARK else None

    @property
    def content(self) -> str:
        return self._item.content


_ORDER = "draws its items in the order of a set of strings, which differs between processes"
UNUSABLE: Mapping[str, str] = {
    "time_intervals": "begins its items from today's date",
    "composite": "is a mixture of others: give each of them a family of its own",
    **dict.fromkeys(
        ("isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"), _ORDER
    ),
}
"""Datasets of reasoning-gym 0.1.25 that are refused, and why."""
