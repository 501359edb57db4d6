"""How often WebShop's reward differs by which nouns a title has: our word lists, or those that a spaCy model tags.

    python benchmarks/webshop_nouns.py [--model en_core_web_sm] [--purchases 20000] [--products FILE ...]

Arbitrary purchases: a goal is made from one product, another one is bought. Without --products (files in the form of
`items_shuffle*.json`) the products are those of our own catalog. Needs the extra `spacy` and the model.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from crl.worlds.json_files import records
from crl.worlds.webshop.catalog import catalog
from crl.worlds.webshop.products import malformed, product_of
from crl.worlds.webshop.reward import Offered, Wanted, kind_of, tagged_nouns


def offered(files: list[Path]) -> list[Offered]:
    """What there is to buy."""
    if not files:
        return [product.offered for product in catalog("own", "synthetic", None, None).products]
    found = {
        record["asin"]: (record, where) for path in files for _, where, record in records(path, malformed, of="it")
    }
    return [product_of(record, None, where).offered for record, where in found.values()]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="en_core_web_sm")
    parser.add_argument("--purchases", type=int, default=20_000)
    parser.add_argument("--products", type=Path, nargs="*", default=[])
    chosen = parser.parse_args()
    products, tagged, draw = offered(chosen.products), tagged_nouns(chosen.model), random.Random(0)
    different, changes = 0, list[float]()
    for _ in range(chosen.purchases):
        asked_for, bought = draw.sample(products, 2)
        wanted = Wanted(asked_for.title, asked_for.query, asked_for.product_category, (), (), 0.0)
        change = kind_of(bought, wanted) - kind_of(bought, wanted, tagged)
        different += change != 0
        changes += [abs(change)] if change else []
    share = different / chosen.purchases
    print(f"{len(products)} products, {chosen.purchases} purchases: the kind differs in {share:.1%},")
    print(
        f"by {sum(changes) / max(1, len(changes)):.2f} on average where it does, {share and max(changes):.2f} at most"
    )


if __name__ == "__main__":
    main()
