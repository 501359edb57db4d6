"""Pages as text, in three views.

- `text`: the original site's text mode, word for word: what stands on the page, joined by [SEP]. It does not show which
  option is chosen.
- `rich`: the original's `text_rich` mode: a line per text, buttons marked.
- `short`: our own, for small contexts: the instruction is not repeated, what can be clicked stands in brackets, options
  that are chosen are named, and long texts are cut (with …).

The page after a purchase is shorter than the original's, which is a form for the people of its study.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Literal

from crl.worlds.webshop.site import BACK, NEXT, PAGE, Site, Visit

View = Literal["text", "rich", "short"]
_SEPARATOR = " [SEP] "
_TITLE, _TEXT, _TEXTS = 120, 400, 8
"""Most characters of a title and of another text, and most texts of a page, in the short view."""
_BLANKS = " \t\n\r\f"

Piece = tuple[Literal["text", "button", "option", "product"], str]
"""A text of a page, and what it is."""


def page_text(site: Site, visit: Visit, view: View) -> str:
    """The open page of a visit."""
    return _VIEWS[view](site, visit)


def _text(site: Site, visit: Visit) -> str:
    # A browser drops a text of blanks with a line break between elements, and keeps one of other blanks.
    shown = [text for _, text in _pieces(site, visit) if text.strip(_BLANKS) or (text and "\n" not in text)]
    return _SEPARATOR.join(text.strip() for text in shown)


def _rich(site: Site, visit: Visit) -> str:
    page, clicked = "", json.dumps(visit.chosen)
    opened = {site.catalog.products[number].asin for number in visit.opened}
    for kind, text in _pieces(site, visit):
        if not text or ("\n" in text and not text.strip(_BLANKS)):
            continue
        shown = text
        if kind == "button":
            shown = f"[button] {text} [button_]"
        elif kind == "option":
            if f'"{text}"' in clicked:
                shown = f"  [clicked button] {text} [clicked button_]"
                page = f"You have clicked {text}.\n{page}"
            else:
                shown = f"  [button] {text} [button_]"
        elif kind == "product":
            mark = "clicked button" if text in opened else "button"
            shown = f"\n[{mark}] {text} [{mark}_]"
        page += f"{shown}\n"
    return page


def _pieces(site: Site, visit: Visit) -> list[Piece]:
    """The texts of a page in their order."""
    if visit.page == "bought":
        return _bought(site, visit)
    pieces: list[Piece] = [("text", "Instruction:"), ("text", visit.goal.text)]
    if visit.page == "search":
        return [("text", "WebShop"), ("text", "Instruction: "), pieces[1], ("button", "Search")]
    pieces.append(("button", "Back to Search"))
    if visit.page == "results":
        pieces.append(("text", f"Page {visit.number} (Total results: {len(visit.hits)})"))
        pieces += [("button", button.capitalize()) for button in site.buttons(visit) if button != BACK]
        for number in site.listed(visit):
            found = site.catalog.products[number]
            pieces += [("product", found.asin), ("text", found.offered.title), ("text", found.price_tag)]
        return [(kind, "< Prev" if text == "< prev" else text) for kind, text in pieces]
    pieces.append(("button", "< Prev"))
    product = site.product(visit)
    assert product is not None, "these pages belong to a product"
    offered = product.offered
    if visit.page == "product":
        for name, values in product.options.items():
            pieces.append(("text", name))
            pieces += [("option", value) for value in values]
        pieces += [("text", offered.title), ("text", f"Price: {product.price_tag}"), ("text", "Rating: N.A.")]
        return [*pieces, *(("button", name.capitalize()) for name in site.sub_pages), ("button", "Buy Now")]
    if visit.sub_page == "description":
        pieces.append(("text", offered.description))
    elif visit.sub_page == "features":
        pieces += [("text", f" {bullet}") for bullet in offered.bullets]
    elif visit.sub_page == "attributes":
        pieces += [("text", f" {attribute}") for attribute in offered.attributes]
        pieces += [("text", product.category), ("text", offered.query), ("text", offered.product_category)]
    return pieces


def _bought(site: Site, visit: Visit) -> list[Piece]:
    product = site.product(visit)
    assert product is not None and visit.reward is not None, "something was bought"
    return [
        ("text", "Thank you for shopping with us!"),
        ("text", "Purchased"), ("text", "asin"), ("text", product.asin),
        ("text", "options"), ("text", json.dumps(visit.chosen)),
        ("text", "Your score (min 0.0, max 1.0)"), ("text", str(visit.reward.total)),
    ]  # fmt: skip


# -- short -------------------------------------------------------------------------------------------------------------


def _short(site: Site, visit: Visit) -> str:
    if visit.page == "search":
        return "Search page."
    buttons = " ".join(f"[{button}]" for button in site.buttons(visit) if button != NEXT or _more(visit))
    if visit.page == "results":
        return "\n".join([*_short_results(site, visit), buttons])
    product = site.product(visit)
    assert product is not None, "these pages belong to a product"
    title = _cut(product.offered.title, _TITLE)
    chosen = ", ".join(f"{name}: {value}" for name, value in visit.chosen.items())
    if visit.page == "bought":
        assert visit.reward is not None, "something was bought"
        return f"Bought: {title}{f' ({chosen})' if chosen else ''}.\nScore: {visit.reward.total:.2f} of 1."
    if visit.page == "product":
        options = [
            f"{name}: " + " ".join(f"[{_line(value)}]" for value in values) for name, values in product.options.items()
        ]
        told = [f"Chosen: {chosen}"] if chosen else []
        return "\n".join([title, f"Price: {product.price_tag}", *options, *told, buttons])
    offered = product.offered
    texts = {
        "description": [offered.description],
        "features": [*offered.bullets],
        "attributes": [", ".join(offered.attributes), offered.product_category],
        "reviews": [],
    }[visit.sub_page]
    lines = [f"- {_cut(text, _TEXT)}" for text in texts if text.strip()]
    left = len(lines) - _TEXTS
    lines = lines[:_TEXTS] + ([f"- … and {left} more"] if left > 0 else [])
    return "\n".join([f"{visit.sub_page.capitalize()} of {title}", *(lines or ["There are none."]), buttons])


def _short_results(site: Site, visit: Visit) -> list[str]:
    found = len(visit.hits)
    lines = [f"Results, page {visit.number} of {max(1, -(-found // PAGE))}:"]
    for number in site.listed(visit):
        product = site.catalog.products[number]
        lines.append(f"[{product.asin.lower()}] {_cut(product.offered.title, _TITLE)} {product.price_tag}")
    return lines if len(lines) > 1 else [*lines, "There are no more." if found else "Nothing was found."]


def _more(visit: Visit) -> bool:
    return visit.page == "results" and visit.number * PAGE < len(visit.hits)


def _line(text: str) -> str:
    return " ".join(text.split())


def _cut(text: str, most: int) -> str:
    line = _line(text)
    return line if len(line) <= most else f"{line[: most - 1]}…"


_VIEWS: Mapping[View, Callable[[Site, Visit], str]] = {"text": _text, "rich": _rich, "short": _short}
