"""What a visit to the shop teaches, in sentences that are true of it: for demonstrations to an extractor."""

from __future__ import annotations

import re
from collections.abc import Sequence

from crl.protocols import Lesson
from crl.records import Episode, Turn
from crl.worlds.webshop.site import BACK, BUY, PREVIOUS, SUB_PAGES, parse_action

NOT_MET = "Not met: "
"""How the last page begins to say what a purchase lacks."""
PRICE, KIND = "price lower than", "the kind of product"
"""How a price that was too high and a wrong kind of product are named there."""
_NOT_MET = re.compile(rf"^{NOT_MET}(.+)\.$", re.MULTILINE)


def lesson_of(episode: Episode, turns: Sequence[Turn]) -> Lesson:
    """A new experience of a visit, a better one than guided it, or nothing where that one was enough."""
    if episode.success and episode.guided:
        return Lesson("return")
    done = [parsed for turn in turns if turn.valid and (parsed := parse_action(turn.action)) is not None]
    searched = [words for kind, words in done if kind == "search"]
    clicked = [value for kind, value in done if kind == "click"]
    lacking = _NOT_MET.search(episode.last_observation or "")
    if not done:
        text = "Write search[words] or click[x], and nothing else."
    elif episode.success:
        options = _options(turns)
        chosen = f", choose {', '.join(options)}" if options else ""
        text = f"search[{searched[-1]}] finds what is wanted: open it{chosen}, then click[buy now]."
    elif lacking:
        text = _of_what_is_lacking(lacking[1].split("; "), turns)
    elif BUY in clicked:
        text = "Before click[buy now] check the qualities, every option and the price that are asked for."
    elif not searched:
        text = "Begin with search[words]: the qualities and the kind of product that are asked for."
    else:
        text = (
            f"After search[{searched[-1]}] open a product, choose its options and click[buy now] before turns run out."
        )
    return Lesson("update" if episode.guided else "add", text)


def _of_what_is_lacking(lacking: Sequence[str], turns: Sequence[Turn]) -> str:
    """What to do otherwise, as it helps with other wishes too: kinds of options instead of their values."""
    seen = "\n".join(turn.observation for turn in turns if _on_product(turn)).lower()
    offered: list[str] = []
    elsewhere: list[str] = []
    qualities: list[str] = []
    others: list[str] = []
    for each in lacking:
        name, _, value = each.partition(": ")
        if value:
            (offered if value.lower() in seen else elsewhere).append(name)
        elif each.startswith(PRICE):
            others.append("Leave what costs more than the limit.")
        elif each.startswith(KIND):
            others.append("Open only products of the kind that is asked for.")
        else:
            qualities.append(each)
    said: list[str] = []
    if elsewhere:
        said.append(f"If a page does not offer the {' and the '.join(elsewhere)} of the wish, open another product.")
    if offered:
        said.append(f"Click the {' and the '.join(offered)} of the wish before click[buy now].")
    if qualities:
        said.append(f"Before click[buy now] make sure of every quality of the wish, such as {qualities[0]}.")
    return " ".join([*others, *said][:2])


def _on_product(turn: Turn) -> bool:
    return "Price: $" in turn.observation


def _options(turns: Sequence[Turn]) -> list[str]:
    """The options that were chosen of what was bought."""
    options: list[str] = []
    for turn in turns:
        kind, value = (turn.valid and parse_action(turn.action)) or ("", "")
        on_product = _on_product(turn)
        if kind == "search" or value == BACK or (on_product and value == PREVIOUS):
            options = []  # what forgets them on the site
        elif on_product and kind == "click" and value not in (BUY, *SUB_PAGES):
            options.append(value)
    return options
