"""What a visit to the shop teaches: sentences that are true of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from crl.worlds.webshop.lessons import lesson_of

SEARCH, OPEN, RED, BUY = "search[vegan sandals]", "click[w1]", "click[red]", "click[buy now]"


def visit(*actions, success=False, guided=False, last="Score: 0.50 of 1.", offered=""):
    pages = {OPEN: "Results, page 1 of 1:", SEARCH: "Search page."}
    product = f"Sandals\nPrice: $9.5\n{offered}"
    turns = [
        SimpleNamespace(action=action, valid=action != "hm", observation=pages.get(action, product))
        for action in actions
    ]
    return lesson_of(SimpleNamespace(success=success, guided=guided, last_observation=last), turns)


@pytest.mark.parametrize(
    ("actions", "options", "text"),
    [
        ((SEARCH, OPEN, "click[blue]", "click[< prev]", OPEN, "click[features]", "hm", RED, BUY), {"success": True},
         "search[vegan sandals] finds what is wanted: open it, choose red, then click[buy now]."),
        ((), {}, "Write search[words] or click[x], and nothing else."),
        (("hm", "hm"), {}, "Write search[words] or click[x], and nothing else."),
        ((SEARCH, OPEN, RED, BUY), {"success": True},
         "search[vegan sandals] finds what is wanted: open it, choose red, then click[buy now]."),
        ((SEARCH, OPEN, BUY), {"success": True},
         "search[vegan sandals] finds what is wanted: open it, then click[buy now]."),
        ((SEARCH, OPEN, BUY), {"last": "Bought: x.\nScore: 0.50 of 1.\nNot met: color: red; vegan."},
         "If a page does not offer the color of the wish, open another product. "
         "Before click[buy now] make sure of every quality of the wish, such as vegan."),
        ((SEARCH, OPEN, BUY), {"last": "Not met: size: 9; price lower than 30.00 dollars.", "offered": "[9]"},
         "Leave what costs more than the limit. Click the size of the wish before click[buy now]."),
        ((SEARCH, OPEN, BUY), {"last": "Not met: color: red; size: 9; shape: oval; the kind of product (hats).",
                               "offered": "[9] [red]"},
         "Open only products of the kind that is asked for. "
         "If a page does not offer the shape of the wish, open another product."),
        ((SEARCH, OPEN, BUY), {},
         "Before click[buy now] check the qualities, every option and the price that are asked for."),
        ((OPEN,), {"last": None},
         "Begin with search[words]: the qualities and the kind of product that are asked for."),
        ((SEARCH, "hm"), {"last": "No turns are left."},
         "After search[vegan sandals] open a product, choose its options and click[buy now] before turns run out."),
    ],
)  # fmt: skip
def test_lessons(actions, options, text):
    lesson = visit(*actions, **options)
    assert (lesson.kind, lesson.text) == ("add", text)
    guided = visit(*actions, guided=True, **options)
    kept = options.get("success", False)
    assert (guided.kind, guided.text) == (("return", None) if kept else ("update", text))
