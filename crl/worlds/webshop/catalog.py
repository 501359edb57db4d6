"""A catalog: products, the search over them, and goals. Equal ones are shared by all environments of a process.

The original site's data is read unchanged:

| file | what it holds |
|---|---|
| `items_shuffle_1000.json`, `items_shuffle.json` | an array of products, the first thousand or all of them |
| `items_ins_v2_1000.json`, `items_ins_v2.json` | per product its attributes and its synthetic instruction |
| `items_human_ins.json` | per product the instructions that people wrote |
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from crl.errors import BadInput
from crl.paths import quoted
from crl.worlds.json_files import check_spelling, data_folder, records, shown, table
from crl.worlds.search import SearchIndex
from crl.worlds.webshop.goals import Goals, Instruction
from crl.worlds.webshop.own import PRODUCTS as OWN_PRODUCTS
from crl.worlds.webshop.own import records as own_records
from crl.worlds.webshop.products import Product, asin_of, malformed, product_of, text_of, texts_of
from crl.worlds.webshop.reward import GoalOption

PRODUCTS: Mapping[str, str] = {"small": "items_shuffle_1000.json", "full": "items_shuffle.json"}
ATTRIBUTES: Mapping[str, str] = {"small": "items_ins_v2_1000.json", "full": "items_ins_v2.json"}
HUMAN = "items_human_ins.json"
_DRIVE: Mapping[str, str] = {
    "items_shuffle_1000.json": "1EgHdxQ_YxqIQlvvq5iKlCrkEKR6-j0Ib",
    "items_ins_v2_1000.json": "1IduG0xl544V_A_jv3tHXC0kyFi7PnyBu",
    "items_shuffle.json": "1A2whVgOO0euk5O13n2iYDM0bQRkkRduB",
    "items_ins_v2.json": "1s2j6NgHljiZzQNL3veZaAiyW_qDEgBNi",
    "items_human_ins.json": "14Kb5SPBk_jfdLZ_CDBNitW98QLDlKR5O",
}
"""Ids of the authors' files, from `setup.sh` of princeton-nlp/WebShop."""
Source = Literal["own", "small", "full"]
Written = Literal["synthetic", "human"]
_LOCK = threading.Lock()
_FIELDS = ("attributes", "instruction", "instruction_attributes", "instruction_options")
_RECORDS = "product ids with their records"


def find(directory: str | None, names: list[str]) -> list[Path]:
    """Paths of files of the original data. Raises BadInput that says what is missing and how to get it."""
    folder, source = data_folder(directory, "WEBSHOP_DATA", "~/.cache/webshop", "WebShop's data")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        get = " && ".join(
            f"gdown -O {quoted(name)} 'https://drive.google.com/uc?id={_DRIVE[name]}'" for name in missing
        )
        raise BadInput(
            f"WebShop's data is missing: {', '.join(missing)}",
            expected="the authors' files, unchanged. They come from github.com/princeton-nlp/WebShop (`setup.sh` there "
            "downloads them). License: MIT; the texts of products are scraped from a shop, for research",
            where=f"{folder} (named by {source}; environment.directory comes first, then $WEBSHOP_DATA, then "
            "~/.cache/webshop)",
            next_step=f"pip install gdown && mkdir -p {quoted(folder)} && cd {quoted(folder)} && {get}\n"
            "Or play the catalog of this project, which needs no data: environment.catalog: own",
        )
    return [folder / name for name in names]


def products_of(path: Path, attributes: Mapping[str, Any], attributes_path: Path, limit: int | None) -> list[Product]:
    """The first `limit` records of a file (None: all) as products; a later one of the same id is passed over."""
    seen: set[str] = set()
    products = []
    for index, where, record in records(path, malformed, of="products"):
        if limit is not None and index >= limit:
            break
        asin = asin_of(record, where)
        if asin is None or asin in seen:
            continue
        seen.add(asin)
        known = texts_of(_entry(attributes, asin, attributes_path), "attributes", f"{attributes_path}, record {asin}")
        products.append(product_of(record, known, f"{where} (asin {asin})"))
    if not products:
        raise malformed(
            "it holds no product", "products whose asin has at most 10 characters and is not nan", str(path)
        )
    return products


def _entry(attributes: Mapping[str, Any], asin: str, path: Path) -> Mapping[str, Any]:
    entry = attributes.get(asin, {})
    if not isinstance(entry, dict):
        raise malformed(f"it is {shown(entry)}", "an object per product", f"{path}, record {asin}")
    check_spelling(entry, _FIELDS, malformed, f"{path}, record {asin}")
    return entry


def synthetic_instructions(products: list[Product], attributes: Mapping[str, Any], path: Path) -> list[Instruction]:
    """The synthetic instructions of products, in their order."""
    found = []
    for number, product in enumerate(products):
        where = f"{path}, record {product.asin}"
        entry = _entry(attributes, product.asin, path)
        text = text_of(entry, "instruction", where)
        if not text:
            continue
        wanted = texts_of(entry, "instruction_attributes", where)
        if not wanted:
            raise malformed("an instruction has no instruction_attributes", "at least one attribute", where)
        found.append(Instruction(number, text, wanted, None))
    return found


def human_instructions(products: list[Product], written: Mapping[str, Any], path: Path) -> list[Instruction]:
    """The instructions that people wrote, in the order of products; those without an attribute are passed over."""
    found = []
    for number, product in enumerate(products):
        records = written.get(product.asin, [])
        if not isinstance(records, list):
            raise malformed(f"it is {shown(records)}", "a list of instructions", f"{path}, record {product.asin}")
        for place, record in enumerate(records):
            where = f"{path}, record {product.asin}, instruction {place}"
            if not isinstance(record, dict):
                raise malformed(f"it is {shown(record)}", "an object per instruction", where)
            check_spelling(record, _FIELDS, malformed, where)
            text = text_of(record, "instruction", where, needed=True).strip(".")
            wanted = texts_of(record, "instruction_attributes", where)
            if wanted:
                found.append(Instruction(number, text, wanted, _asked_options(record, where), place))
    return found


def _asked_options(record: Mapping[str, Any], where: str) -> tuple[GoalOption, ...]:
    value = record.get("instruction_options")
    if isinstance(value, dict) and all(isinstance(each, str) for each in value.values()):
        return tuple(value.items())
    return texts_of(record, "instruction_options", where) or ()


@dataclass(frozen=True)
class Catalog:
    """What a shop sells, how it is found, and what is asked for."""

    products: list[Product]
    index: SearchIndex
    goals: Goals


def files_of(source: Source, written: Written, directory: str | None) -> dict[str, Path]:
    """The files of some settings, by what they hold; none of our own. Raises BadInput where one is missing."""
    if source == "own":
        return {}
    names = {"products": PRODUCTS[source], "attributes": ATTRIBUTES[source]}
    names |= {"instructions": HUMAN} if written == "human" else {}
    return dict(zip(names, find(directory, list(names.values())), strict=True))


def catalog(source: Source, written: Written, products: int | None, directory: str | None) -> Catalog:
    """The catalog of some settings. Raises BadInput where its data is missing or malformed."""
    if source == "own":
        with _LOCK:
            return _own(OWN_PRODUCTS if products is None else products)
    paths = files_of(source, written, directory).values()
    states = tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths)
    with _LOCK:
        return _official(states, products)


@lru_cache(maxsize=2)
def _own(products: int) -> Catalog:
    where = "crl/worlds/webshop/own.py"
    sold, instructions = [], []
    for number, (record, entry) in enumerate(own_records(products)):
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
