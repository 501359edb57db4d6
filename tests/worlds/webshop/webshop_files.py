"""Files in the schema of WebShop's official data, made for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from crl.worlds.webshop import WebShopConfig

KINDS = ("desk lamp", "rain coat", "green tea")


def record(number: int, **changes: Any) -> dict[str, Any]:
    """A product record with every field that the official ones have and this project reads."""
    kind = KINDS[number % len(KINDS)]
    return {
        "asin": f"B0{number:08d}",
        "name": f"Maker{number} {kind.title()}",
        "brand": f"Maker{number}",
        "category": "home",
        "query": kind.title(),
        "product_category": f"Home › Things › {kind.title()}",
        "full_description": f"A {kind} that is easy to clean.",
        "small_description": ["It lasts.", "It is light weight."],
        "pricing": "$12.50",
        "customization_options": {"Color": [{"value": "Red", "image": None}, {"value": "Navy Blue", "image": None}]},
        "images": ["https://example.org/a.jpg"],
        **changes,
    }


def entry(*attributes: str, text: str | None = "Find me a nice thing", wanted: tuple[str, ...] = ()) -> dict[str, Any]:
    """An entry of the attribute file; `text` None: without an instruction."""
    written = {} if text is None else {"instruction": text, "instruction_attributes": list(wanted or attributes[:1])}
    return {"attributes": list(attributes), **written}


def write(
    folder: Path,
    records: list[Any],
    entries: dict[str, Any] | None = None,
    human: dict[str, Any] | None = None,
) -> WebShopConfig:
    """Write the files of the small catalog and return a config that finds them. Without entries every product has an
    instruction with a text of its own."""
    if entries is None:
        entries = {
            each["asin"]: entry("easy clean", "light weight", text=f"Find me an easy clean thing {number}")
            for number, each in enumerate(records)
        }
    (folder / "items_shuffle_1000.json").write_text(json.dumps(records), encoding="utf-8")
    (folder / "items_ins_v2_1000.json").write_text(json.dumps(entries), encoding="utf-8")
    if human is not None:
        (folder / "items_human_ins.json").write_text(json.dumps(human), encoding="utf-8")
    return WebShopConfig(
        catalog="small", directory=str(folder), goals="synthetic" if human is None else "human", held_out_from=None
    )
