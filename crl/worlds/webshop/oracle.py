"""A shopper that knows the goal: for demonstrations, and as proof that a goal can be met.

It searches for the qualities and the kind that are asked for, as a person would, and takes the first product that is
worth 1 with the right options; where there is none it searches more closely, at last for the very product.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from crl.worlds.webshop.goals import Goal
from crl.worlds.webshop.reward import option_met, reward_of
from crl.worlds.webshop.site import BUY, NEXT, PAGE, PREVIOUS, Site, Visit

_LONGEST_QUERY = 400


@dataclass(frozen=True, slots=True)
class Plan:
    """What to search for, which product to take, and what to click for its options, by option."""

    words: str
    product: int
    page: int
    choices: Mapping[str, str]
    """What is clicked, by the name of the option."""
    value: float


def plan_for(site: Site, goal: Goal) -> Plan | None:
    """The first plan that is worth 1, else the best that was thought of; None where no search finds anything."""
    best: Plan | None = None
    for words in _queries(site, goal):
        for rank, number in enumerate(site.catalog.index.search(words)):
            choices, worth = _choices(site, goal, number)
            if best is None or worth > best.value:
                best = Plan(words, number, rank // PAGE + 1, choices, worth)
            if worth == 1:
                return best
    return best


def _queries(site: Site, goal: Goal) -> Iterator[str]:
    product = site.catalog.products[goal.product]
    values = [option if isinstance(option, str) else option[1] for option in goal.wanted.options]
    plain = " ".join([*goal.wanted.attributes, goal.wanted.query])
    for text in (plain, " ".join([plain, *values]), product.offered.title, product.document):
        words = " ".join(text.replace("[", " ").replace("]", " ").split()).lower()[:_LONGEST_QUERY]
        if words:
            yield words


def _choices(site: Site, goal: Goal, number: int) -> tuple[dict[str, str], float]:
    """What to click on the page of a product, and what buying it so is worth."""
    visit = Visit(goal, page="product", product=number)
    possible = site.choices(visit)
    chosen: dict[str, str] = {}
    for option in goal.wanted.options:
        if option_met(option, list(visit.chosen.values())):
            continue
        met = [(key, pair) for key, pair in possible.items() if pair[0] not in chosen and option_met(option, [pair[1]])]
        # The very option before one that passes for it.
        for key, (name, value) in sorted(met, key=lambda each: each[1] != option and each[1][1] != option)[:1]:
            chosen[name], visit.chosen[name] = key, value
    offered = site.catalog.products[number].offered
    return chosen, reward_of(offered, goal.wanted, tuple(visit.chosen.values()), site.nouns_of).total


def next_action(site: Site, visit: Visit, plan: Plan) -> str | None:
    """What to do on the open page to follow a plan; None when the visit is over."""
    if visit.page == "bought":
        return None
    if visit.words != plan.words or visit.page == "search":
        return f"search[{plan.words}]"
    if visit.page == "results":
        if visit.number != plan.page:
            return f"click[{NEXT if visit.number < plan.page else PREVIOUS}]"
        links = [key for key, number in site.links(visit).items() if number == plan.product]
        return f"click[{links[0]}]" if links else None
    if visit.page == "sub_page" or visit.product != plan.product:
        return f"click[{PREVIOUS}]"
    possible = site.choices(visit)
    for name, key in plan.choices.items():
        if visit.chosen.get(name) != possible[key][1]:
            return f"click[{key}]"
    return f"click[{BUY}]"
