"""What a visit to the shop teaches, in sentences that are true of it: for demonstrations to an extractor."""

from __future__ import annotations

import re
from collections.abc import Sequence

from crl.envs.webshop.site import BUY, SUB_PAGES, parse_action
from crl.protocols import Lesson
from crl.records import Episode, Turn

NOT_MET = "Not met: "
"""How the last page begins to say what a purchase lacks."""
_NOT_MET = re.compile(rf"^{NOT_MET}(.+)\.$", re.MULTILINE)


def lesson_of(episode: Episode, turns: Sequence[Turn]) -> Lesson:
    """A new note about a visit, a better one than the note that guided it, or nothing where that note was enough."""
    if episode.success and episode.guided:
        return Lesson("return")
    done = [parsed for turn in turns if turn.valid and (parsed := parse_action(turn.action)) is not None]
    searched = [words for kind, words in done if kind == "search"]
    clicked = [value for kind, value in done if kind == "click"]
    lacking = _NOT_MET.search(episode.last_observation or "")
    if not done:
        text = "Write search[words] or click[x], and nothing else."
    elif episode.success:
        options = [value for value in clicked if value not in (BUY, *SUB_PAGES)][1:]
        chosen = f", choose {', '.join(options)}" if options else ""
        text = f"search[{searched[-1]}] finds what is wanted: open it{chosen}, then click[buy now]."
    elif lacking:
        text = f"Before click[buy now] see to every wish. This purchase did not meet: {lacking[1]}."
    elif BUY in clicked:
        text = "Before click[buy now] check the qualities, every option and the price that are asked for."
    elif not searched:
        text = "Begin with search[words]: the qualities and the kind of product that are asked for."
    else:
        text = (
            f"After search[{searched[-1]}] open a product, choose its options and click[buy now] before turns run out."
        )
    return Lesson("update" if episode.guided else "add", text)
