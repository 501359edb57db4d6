"""A catalog: products, the search over them, and goals. Equal ones are shared by all environments of a process."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from crl.worlds.json_files import table
from crl.worlds.search import SearchIndex
from crl.worlds.webshop.goals import Goals, Instruction
from crl.worlds.webshop.official import (
    ATTRIBUTES,
    HUMAN,
    PRODUCTS,
    find,
    human_instructions,
    products_of,
    synthetic_instructions,
)
from crl.worlds.webshop.own import PRODUCTS as OWN_PRODUCTS
from crl.worlds.webshop.own import records
from crl.worlds.webshop.products import Product, malformed, product_of

Source = Literal["own", "small", "full"]
Written = Literal["synthetic", "human"]
_LOCK = threading.Lock()
_RECORDS = "product ids with their records"


@dataclass(frozen=True)
class Catalog:
    """What a shop sells, how it is found, and what is asked for."""

    products: list[Product]
    index: SearchIndex
    goals: Goals


def catalog(source: Source, written: Written, products: int | None, directory: str | None) -> Catalog:
    """The catalog of some settings. Raises BadInput where its data is missing or malformed."""
    if source == "own":
        with _LOCK:
            return _own(OWN_PRODUCTS if products is None else products)
    names = [PRODUCTS[source], ATTRIBUTES[source], *([HUMAN] if written == "human" else [])]
    paths = find(directory, names)
    states = tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths)
    with _LOCK:
        return _official(states, products)


@lru_cache(maxsize=2)
def _own(products: int) -> Catalog:
    where = "crl/worlds/webshop/own.py"
    sold, instructions = [], []
    for number, (record, entry) in enumerate(records(products)):
        sold.append(product_of(record, entry["attributes"], where))
        if "instruction" in entry:
            instructions.append(Instruction(number, entry["instruction"], tuple(entry["instruction_attributes"]), None))
    return _built(sold, instructions, "WebShop's own catalog")


@lru_cache(maxsize=2)
def _official(files: tuple[tuple[Path, int, int], ...], products: int | None) -> Catalog:
    path, attributes_path, *human = (each for each, *_ in files)
    attributes = table(attributes_path, malformed, of=_RECORDS)
    sold = products_of(path, attributes, attributes_path, products)
    if human:
        instructions = human_instructions(sold, table(human[0], malformed, of=_RECORDS), human[0])
    else:
        instructions = synthetic_instructions(sold, attributes, attributes_path)
    return _built(sold, instructions, f"WebShop's data in {path.parent}")


def _built(sold: list[Product], instructions: Iterable[Instruction], where: str) -> Catalog:
    index = SearchIndex([product.asin for product in sold], (product.document for product in sold))
    return Catalog(sold, index, Goals(sold, list(instructions), where=where))
