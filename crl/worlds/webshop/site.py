"""The site as a player meets it: which page is open, and what a search or a click does.

search → results → product → its description, features, reviews or attributes → bought. A search is possible on every
page and forgets what was chosen. `< prev` leads from a sub-page to its product, and from a product to the results; the
options are forgotten there. `buy now` ends the visit.

Against the original: its secret search words for its makers (`<r>`, `<a>`, …) are plain words here, blanks in what is
clicked need not be counted, and an option whose value has brackets can be chosen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from crl.worlds.webshop.catalog import Catalog
from crl.worlds.webshop.goals import Goal
from crl.worlds.webshop.products import Product
from crl.worlds.webshop.reward import Nouns, Reward, nouns, reward_of

PAGE = 10
"""Products on a page of results."""
BACK, PREVIOUS, NEXT, BUY = "back to search", "< prev", "next >", "buy now"
SUB_PAGES = ("description", "features", "reviews", "attributes")

Page = Literal["search", "results", "product", "sub_page", "bought"]
_ACTION = re.compile(r"\s*(search|click)\[(.+)\]")


@dataclass
class Visit:
    """A visit to the site: the page that is open, and what led there."""

    goal: Goal
    page: Page = "search"
    words: str = ""
    """What was searched for last."""
    hits: list[int] = field(default_factory=list)
    """Numbers of the products that were found."""
    number: int = 1
    """Page of the results, from 1."""
    product: int | None = None
    sub_page: str = ""
    chosen: dict[str, str] = field(default_factory=dict)
    """Option values by option."""
    opened: set[int] = field(default_factory=set)
    """Products that were looked at."""
    reward: Reward | None = None
    """What was bought is worth."""


def parse_action(action: str | None) -> tuple[str, str] | None:
    """What an action does and with what, lower-cased: ("search", words) or ("click", value); None for anything else."""
    found = _ACTION.match(action or "")
    return None if found is None else (found[1], found[2].lower())


def _key(value: str) -> str:
    return " ".join(value.split())


class Site:
    """A shop over a catalog; it holds no visit, so one serves any number of them."""

    def __init__(self, catalog: Catalog, *, attributes_page: bool, nouns_of: Nouns = nouns) -> None:
        self.catalog, self.nouns_of = catalog, nouns_of
        self.sub_pages = SUB_PAGES if attributes_page else SUB_PAGES[:3]

    def product(self, visit: Visit) -> Product | None:
        """The product that is open."""
        return None if visit.product is None else self.catalog.products[visit.product]

    def listed(self, visit: Visit) -> list[int]:
        """Numbers of the products on the open page of results."""
        return visit.hits[(visit.number - 1) * PAGE : visit.number * PAGE]

    def buttons(self, visit: Visit) -> list[str]:
        """The buttons of the open page."""
        if visit.page == "results":
            return [BACK, *([PREVIOUS] if visit.number > 1 else []), NEXT]
        if visit.page == "product":
            return [BACK, PREVIOUS, *self.sub_pages, BUY]
        return [BACK, PREVIOUS] if visit.page == "sub_page" else []

    def links(self, visit: Visit) -> dict[str, int]:
        """Products that can be opened, by what is clicked for them."""
        if visit.page != "results":
            return {}
        return {_key(self.catalog.products[number].asin.lower()): number for number in self.listed(visit)}

    def choices(self, visit: Visit) -> dict[str, tuple[str, str]]:
        """Options that can be chosen as (name, value), by what is clicked for them. Of two with one value the last."""
        product = self.product(visit)
        if visit.page != "product" or product is None:
            return {}
        buttons = set(self.buttons(visit))
        found = {_key(value): (name, value) for name, values in product.options.items() for value in values}
        return {key: pair for key, pair in found.items() if key and key not in buttons}

    def clickable(self, visit: Visit) -> list[str]:
        """All that can be clicked, in the order of the page."""
        return [*self.buttons(visit), *self.links(visit), *self.choices(visit)]

    def act(self, visit: Visit, action: str | None) -> bool:
        """Do what an action says; False, and nothing is changed, where it is not possible."""
        parsed = parse_action(action)
        if parsed is None or visit.page == "bought":
            return False
        kind, value = parsed
        if kind == "search":
            self._search(visit, value)
            return True
        return self._click(visit, _key(value))

    def _search(self, visit: Visit, words: str) -> None:
        visit.page, visit.words, visit.number = "results", words, 1
        visit.hits = self.catalog.index.search(words)
        visit.product, visit.chosen = None, {}

    def _click(self, visit: Visit, value: str) -> bool:
        if value in self.buttons(visit):
            self._press(visit, value)
            return True
        link, choice = self.links(visit).get(value), self.choices(visit).get(value)
        if link is not None:
            visit.page, visit.product = "product", link
            visit.opened.add(link)
        elif choice is not None:
            visit.chosen[choice[0]] = choice[1]
        return link is not None or choice is not None

    def _press(self, visit: Visit, button: str) -> None:
        if button == BUY:
            visit.reward = self.purchase_value(visit)
            visit.page = "bought"
        elif button == BACK:
            visit.page, visit.words, visit.hits, visit.number = "search", "", [], 1
            visit.product, visit.chosen, visit.opened = None, {}, set()
        elif button in (NEXT, PREVIOUS) and visit.page == "results":
            visit.number += 1 if button == NEXT else -1
        elif button == PREVIOUS and visit.page == "product":
            visit.page, visit.product, visit.chosen = "results", None, {}
        elif button == PREVIOUS:
            visit.page = "product"
        else:
            visit.page, visit.sub_page = "sub_page", button

    def purchase_value(self, visit: Visit) -> Reward:
        """What buying the open product with what is chosen would be worth."""
        product = self.product(visit)
        assert product is not None, "only the page of a product has the button"
        return reward_of(product.offered, visit.goal.wanted, tuple(visit.chosen.values()), self.nouns_of)
