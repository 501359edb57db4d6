"""What is asked for: goals made from instructions, their order, and which of them a seed means.

Instructions are of two kinds. A **synthetic** one belongs to a product and is a goal for every combination of the
product's options, written behind it. A **human** one was written by a person and names the options it asks for. Either
ends with a price limit: of the four next multiples of ten above the shop price two are drawn, and the larger is the
limit; a product above 980 has none.

All goals are shuffled with seed 233. The first 500 are for tests, the next 1,000 for development, the others for
training; of 1,500 goals or less a quarter, a quarter, and the rest, by a hash of their words. Goals are drawn for
training by weight: those whose attributes are rare are drawn more often. A goal of training whose words are those of a
held-out one is passed over, so that nothing held out is trained.

The original draws prices and limits anew in every process; here they follow from the product's id.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Literal

import numpy as np

from crl.errors import BadInput
from crl.worlds.webshop.products import Product
from crl.worlds.webshop.reward import GoalOption, Wanted

SHUFFLE_SEED = 233
TEST, DEVELOPMENT = 500, 1000
"""Goals for tests and for development."""
NO_LIMIT = 1_000_000.0
_LIMITS = [10.0 * step for step in range(1, 100)]
_DRAWS = 1000

Split = Literal["test", "development"]


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of a product. `options` None: one goal per combination of the product's options (synthetic)."""

    product: int
    """Number of the product it was made from."""
    text: str
    attributes: tuple[str, ...]
    options: tuple[GoalOption, ...] | None
    index: int = 0
    """Which instruction of its product it is."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal: what a player reads, and what the reward is computed from."""

    product: int
    text: str
    """The whole instruction, price limit included."""
    content: str
    """The instruction without its price limit: what a player could know by heart."""
    wanted: Wanted


def price_limit(product: Product, index: int = 0) -> float:
    """The limit of a product's instruction."""
    above = [limit for limit in _LIMITS if limit > product.offered.price][:4]
    if len(above) < 2:
        return NO_LIMIT
    return max(random.Random(f"price limit of {product.asin} {index}").sample(above, 2))


class Goals:
    """All goals of a catalog, in their shuffled order; a goal is made when it is asked for."""

    def __init__(self, products: Sequence[Product], instructions: Sequence[Instruction], *, where: str) -> None:
        """`where` names the catalog in errors. Raises BadInput where there is no goal."""
        self._products, self._instructions, self._where = products, instructions, where
        counts = np.array([self._variants(each) for each in instructions], dtype=np.int64)
        self._order = list(range(int(counts.sum())))
        if not self._order:
            raise BadInput(
                "no product of the catalog has an instruction, so there is nothing to buy",
                expected="at least one product with an instruction and its attributes",
                where=where,
                next_step="choose the other kind of goals (goals: human or synthetic), or more products",
            )
        random.Random(SHUFFLE_SEED).shuffle(self._order)
        self._first = np.concatenate([[0], np.cumsum(counts)])
        self._weights = self._weighted(counts)
        self.get = lru_cache(maxsize=4096)(self._goal)
        self.test, self.development, self.training = self._sides()
        """Places of the goals of each side."""

    def _sides(self) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        if len(self) > TEST + DEVELOPMENT:  # as the original has it
            held_out = TEST + DEVELOPMENT
            return range(TEST), range(TEST, held_out), range(held_out, len(self))
        digests = [
            hashlib.sha256(self._goal(at).content.encode("utf-8", "replace")).digest() for at in range(len(self))
        ]
        places = sorted(range(len(self)), key=digests.__getitem__)
        quarter = [4 * digests[at][0] // 256 for at in range(len(self))]
        first, second = ([at for at in places if quarter[at] == number] for number in (0, 1))
        return first, second, [at for at in range(len(self)) if quarter[at] > 1]

    def __len__(self) -> int:
        return len(self._order)

    def _variants(self, instruction: Instruction) -> int:
        if instruction.options is not None:
            return 1
        return prod(len(values) for values in self._products[instruction.product].options.values())

    def _weighted(self, counts: np.ndarray) -> np.ndarray:
        """The weight of a goal of each instruction: how rare its attributes are, on average; 1 for human ones."""
        found: Counter[str] = Counter()
        for instruction, count in zip(self._instructions, counts.tolist(), strict=True):
            for attribute in instruction.attributes:
                found[attribute] += count
        return np.array(
            [
                1.0 if each.options is not None
                else sum(1 / max(1, found[name]) for name in each.attributes) / len(each.attributes)
                for each in self._instructions
            ]
        )  # fmt: skip

    def _goal(self, index: int) -> Goal:
        """The goal at a place of the shuffled order (use `get`, which keeps the last ones)."""
        number = self._order[index]
        place = int(np.searchsorted(self._first, number, side="right")) - 1
        instruction = self._instructions[place]
        product = self._products[instruction.product]
        options, text = instruction.options, instruction.text
        if options is None:
            options = self._combination(product, number - int(self._first[place]))
            named = ", and ".join(f"{name}: {value}" for name, value in options)
            text += f" with {named}" if named else ""
        limit = price_limit(product, instruction.index)
        priced = "" if limit == NO_LIMIT else f", and price lower than {limit:.2f} dollars"
        offered = product.offered
        wanted = Wanted(
            offered.title, offered.query, offered.product_category, instruction.attributes, tuple(options), limit
        )
        return Goal(instruction.product, text + priced, text, wanted)

    @staticmethod
    def _combination(product: Product, variant: int) -> tuple[tuple[str, str], ...]:
        """The options of a combination: names in alphabetical order, the last one changes first."""
        names = sorted(product.options)
        chosen = []
        for name in reversed(names):
            variant, at = divmod(variant, len(product.options[name]))
            chosen.append((name, product.options[name][at]))
        return tuple(reversed(chosen))

    # -- which goal a seed means ---------------------------------------------------------------------------------------

    def of_seed(self, seed: int, held_out_from: int | None, split: Split) -> int:
        """The place of a seed's goal.

        Held-out seeds are the goals of their split in their order, again from the first behind the last; seeds below
        are drawn by weight among those of training. Without held-out seeds seed i is the goal at place i.
        """
        if held_out_from is None:
            return seed % len(self)
        if seed < held_out_from:
            return self._trained(seed)
        places = self.of_split(split)
        if not places:
            raise self._too_few(split)
        return places[(seed - held_out_from) % len(places)]

    def of_split(self, split: Split) -> Sequence[int]:
        """Places of the goals of a split."""
        return self.test if split == "test" else self.development

    @cached_property
    def _held_out(self) -> frozenset[str]:
        return frozenset(self._goal(index).content for index in (*self.test, *self.development))

    @cached_property
    def _cumulated(self) -> np.ndarray:
        """The weights of the goals of training, summed up along the order."""
        numbers = np.array([self._order[place] for place in self.training], dtype=np.int64)
        return np.cumsum(self._weights[np.searchsorted(self._first, numbers, side="right") - 1])

    def _trained(self, seed: int) -> int:
        generator = random.Random(f"webshop {seed}")
        if not len(self._cumulated):
            raise self._too_few("training")
        for _ in range(_DRAWS):
            drawn = int(np.searchsorted(self._cumulated, generator.random() * self._cumulated[-1], side="right"))
            index = self.training[min(drawn, len(self._cumulated) - 1)]
            if self.get(index).content not in self._held_out:
                return index
        raise self._too_few("training that is not held out too")

    def _too_few(self, kind: str) -> BadInput:
        return BadInput(
            f"the catalog has no goal for {kind}: it has {len(self)} in all",
            expected="goals on both sides: some for training, others held out",
            where=self._where,
            next_step="use more products, or set held_out_from: null: then seed i is the goal at place i",
        )
