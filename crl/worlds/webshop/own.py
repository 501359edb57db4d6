"""Our own catalog: products and instructions in the official schema, made from the word lists of `kinds`.

Product i is the same in a catalog of any size. Its title names two of its qualities, its features the others: the
title alone does not say all. About half of the products have an instruction, and no two instructions ask for the
same qualities of one kind.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from crl.worlds.webshop.kinds import OPTIONS, Kind, kinds

PRODUCTS = 1000
"""Products of the catalog unless a config says otherwise."""

_FIRST = "nor kel bra tor mi sal ven har lu fen cas del ro gim pel tar wen ost bel mar"
_LAST = "vane brook dine mark leaf ster wick dale mont field crest lane ford by view holm gate more well thorpe"
_DESCRIPTIONS = (
    "{named} by {brand}, made for {use}. Described by those who bought before as {third}.",
    "{brand} has made {query} for years: {third}, and at its best for {use}.",
    "With {use} in mind, {brand} offers {query} of a kind that lasts: {third}.",
)
_FEATURES = (
    "{first}: what you need for {use}.",
    "Chosen by people who wanted {query} for {use}: {first}.",
    "{brand} promises: {first}, every time.",
)
_MORE = ("You also get: {rest}.", "More to like: {rest}.", "Tested and found {rest}.")
_LAST_FEATURES = (
    "Returns are free within thirty days.",
    "Packed without plastic and sent within two days.",
    "Questions are answered by {brand} within a day.",
)
_INSTRUCTIONS = (
    "Find me {wanted} {query}",
    "I am looking for {query}: {wanted}",
    "Please buy {query} for {use}: {wanted}",
    "I need {wanted} {query} for {use}",
)


def records(products: int = PRODUCTS) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """So many products, each with its entry in the attribute file, as the official files hold them."""
    taken: set[tuple[str, frozenset[str]]] = set()
    for index in range(products):
        generator = random.Random(f"webshop product {index}")
        kind = kinds()[index % len(kinds())]
        brand = (generator.choice(_FIRST.split()) + generator.choice(_LAST.split())).title()
        attributes = generator.sample(kind.attributes, generator.randint(3, 5))
        use = generator.choice(kind.uses)
        record = _record(generator, kind, index, brand, attributes, use)
        entry: dict[str, Any] = {"attributes": attributes}
        wanted = generator.sample(attributes, generator.randint(1, 2))
        text = generator.choice(_INSTRUCTIONS).format(wanted=", ".join(wanted), query=kind.query, use=use)
        asked_for = kind.query, frozenset(wanted)
        if generator.random() < 0.7 and asked_for not in taken:
            taken.add(asked_for)
            entry |= {"instruction": text, "instruction_attributes": wanted}
        yield record, entry


def _record(
    generator: random.Random, kind: Kind, index: int, brand: str, attributes: list[str], use: str
) -> dict[str, Any]:
    words = {
        "brand": brand, "query": kind.query, "named": kind.query.capitalize(), "use": use,
        "first": attributes[0].capitalize(), "third": attributes[2], "rest": ", ".join(attributes[2:]),
    }  # fmt: skip
    features = [generator.choice(lines).format(**words) for lines in (_FEATURES, _MORE, _LAST_FEATURES)]
    lowest = kind.lowest * (kind.highest / kind.lowest) ** generator.random()
    prices = [lowest] if generator.random() < 0.7 else [lowest, lowest * generator.uniform(1.1, 1.6)]
    options = {}
    for name in kind.options:
        values = OPTIONS[name]
        chosen = set(generator.sample(values, generator.randint(2, min(4, len(values)))))
        options[name.title()] = [{"value": value.title(), "image": None} for value in values if value in chosen]
    return {
        "asin": f"W{1000 + index}",
        "name": f"{brand} {attributes[0].title()} {kind.query.title()}, {attributes[1].title()}, for {use.title()}",
        "brand": brand,
        "category": kind.department,
        "query": kind.query,
        "product_category": kind.product_category,
        "full_description": generator.choice(_DESCRIPTIONS).format(**words),
        "small_description": features,
        "pricing": "".join(f"${price:.2f}" for price in prices),
        "customization_options": options,
        "images": [""],
    }
