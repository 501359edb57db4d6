"""A product of the shop, made from a record in the official schema (`items_shuffle*.json`), and what it costs.

A record has to name its `asin` and its `name`. Any other field may be missing, null or empty, as in scraped data; a
field of another kind than the schema's is refused with the file and the record. The shop price of a range is drawn from
it, by the product's id: the original site draws it anew in every process.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from crl.errors import BadInput
from crl.records import OutsideRows, Row, Rules, table_of
from crl.text.unicode import valid_text
from crl.worlds.json_files import check_spelling, shown
from crl.worlds.webshop.reward import Offered

NO_PRICE = 100.0
"""What a product without a price costs."""
LONGEST_ASIN = 10
NO_ATTRIBUTES = ("DUMMY_ATTR",)
"""What the site lists for a product that the attribute file does not have."""
_FIELDS = (
    "asin", "name", "query", "product_category", "small_description", "full_description", "pricing", "category",
    "customization_options",
)  # fmt: skip
_AMOUNT = re.compile(r"[^\d.]", re.ASCII)


@dataclass(frozen=True, slots=True)
class Product:
    """A product: what it offers, its price as it is shown, and the values of each of its options, in their order."""

    asin: str
    offered: Offered
    price_tag: str
    category: str
    options: Mapping[str, tuple[str, ...]]

    @property
    def document(self) -> str:
        """What the search finds it by: title, description, first feature and options, lower-cased."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        first = self.offered.bullets[0] if self.offered.bullets else ""
        return " ".join([self.offered.title, self.offered.description, first, options]).lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductRow(Row):
    """A product of the original data, as Great Expectations looks at it before it is sold."""

    table: ClassVar[str] = "products"
    rules: ClassVar[Rules] = Rules(key=("asin",), filled=("asin", "title"))
    asin: Annotated[str, "id of the product"]
    title: Annotated[str, "its title"]


def outside_rows(products: Sequence[Product], file: str) -> OutsideRows:
    """The products of a file, before they are taken."""
    listed = [ProductRow(asin=each.asin, title=each.offered.title) for each in products]
    return OutsideRows(ProductRow, table_of(ProductRow, listed), file, NEXT_STEP)


NEXT_STEP = "correct or remove the record, or get the file again: `bash setup.sh` of princeton-nlp/WebShop"


def malformed(found: str, expected: str, where: str) -> BadInput:
    """A record that cannot be read."""
    return BadInput(
        f"a record of WebShop's data cannot be read: {found}",
        expected=expected,
        where=where,
        next_step=NEXT_STEP,
    )


def given(record: Mapping[str, Any], field: str) -> Any:
    """A field of a record; None where it is missing, null or NaN, as exports of tables write what is missing."""
    value = record.get(field)
    return None if value != value else value


def text_of(record: Mapping[str, Any], field: str, where: str, *, needed: bool = False) -> str:
    """A text of a record; empty where it is missing or null and not needed."""
    value = given(record, field)
    if isinstance(value, str):
        return valid_text(value)
    if value is None and not needed:
        return ""
    found = f"{field} is {shown(value)}" if field in record else f"it has no {field}"
    raise malformed(found, f"a text as {field}", where)


def texts_of(record: Mapping[str, Any], field: str, where: str) -> tuple[str, ...] | None:
    """A list of texts of a record; None where it is missing or null."""
    value = given(record, field)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise malformed(f"{field} is {shown(value)}", f"a list of texts as {field}", where)
    return tuple(map(valid_text, value))


def asin_of(record: Any, where: str) -> str | None:
    """The id of a product record; None for a record that the site passes over: `nan`, or longer than an id."""
    if not isinstance(record, dict):
        raise malformed(f"it is {shown(record)}", "an object per product", where)
    asin = text_of(record, "asin", where, needed=True)
    return None if asin == "nan" or not asin or len(asin) > LONGEST_ASIN else asin


def product_of(record: Mapping[str, Any], attributes: Sequence[str] | None, where: str) -> Product:
    """The product of a record and of its entry in the attribute file. Raises BadInput naming `where`."""
    check_spelling(record, _FIELDS, malformed, where)
    asin = text_of(record, "asin", where, needed=True)
    amounts = _amounts(given(record, "pricing"), where)
    offered = Offered(
        title=text_of(record, "name", where, needed=True),
        query=text_of(record, "query", where).lower().strip(),
        product_category=text_of(record, "product_category", where),
        attributes=NO_ATTRIBUTES if attributes is None else tuple(attributes),
        bullets=_bullets(given(record, "small_description"), where),
        description=text_of(record, "full_description", where),
        price=_shop_price(asin, amounts),
    )
    return Product(asin, offered, _tag(amounts), text_of(record, "category", where), _options(record, where))


def _bullets(value: Any, where: str) -> tuple[str, ...]:
    if value is None or isinstance(value, str):
        return (valid_text(value or ""),)
    if not isinstance(value, list) or not all(each is None or isinstance(each, str) for each in value):
        raise malformed(f"small_description is {shown(value)}", "a text or a list of texts", where)
    return tuple(valid_text(each or "") for each in value)


def _amounts(pricing: Any, where: str) -> tuple[float, ...]:
    """The prices of a text such as "$12.99" or "$1,012.00$1,847.00", at most two; none where it names none."""
    if pricing is None:
        return ()
    if not isinstance(pricing, str):
        raise malformed(f"pricing is {shown(pricing)}", 'a text such as "$12.99"', where)
    try:
        amounts = [float(_AMOUNT.sub("", part)) for part in pricing.split("$")[1:]]
    except ValueError:
        amounts = [math.inf]
    if not all(map(math.isfinite, amounts)):
        raise malformed(f"pricing is {shown(pricing)}", 'amounts such as "$12.99" or "$12.99$15.99"', where)
    return tuple(amounts[:2])


def _shop_price(asin: str, amounts: tuple[float, ...]) -> float:
    if not amounts:
        return NO_PRICE
    return amounts[0] if len(amounts) == 1 else random.Random(f"price of {asin}").uniform(*amounts)


def _tag(amounts: tuple[float, ...]) -> str:
    return " to ".join(f"${amount}" for amount in amounts or (NO_PRICE,))


def _options(record: Mapping[str, Any], where: str) -> dict[str, tuple[str, ...]]:
    value = given(record, "customization_options")
    if not value:
        return {}
    if not isinstance(value, dict):
        raise malformed(f"customization_options is {shown(value)}", "an object of options", where)
    options = {}
    for name, contents in value.items():
        if contents is None:
            continue
        if not isinstance(contents, list):
            raise malformed(f"option {name!r} is {shown(contents)}", "a list of values", where)
        options[valid_text(name).lower()] = tuple(_option_value(name, content, where) for content in contents)
    return options


def _option_value(name: str, content: Any, where: str) -> str:
    value = content.get("value") if isinstance(content, dict) else None
    if not isinstance(value, str):
        raise malformed(f"a value of option {name!r} is {shown(content)}", 'an object such as {"value": "red"}', where)
    return valid_text(value).strip().replace("/", " | ").lower()
