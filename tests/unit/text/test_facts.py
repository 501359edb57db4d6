"""Texts that are nearly alike and say different things: numbers, denials, order. And paraphrases, which do not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.policies.embedders import LexicalEmbedder
from crl.text.facts import differ

THINGS = ("coin", "wine", "mask", "bell", "rope", "salt")
LISTS = (
    "{}, {}, {}", "Offer the red shrine the {}, then the {}, then the {}.", "The order is {}, {} and {}.",
    "Bring the {}; next the {}; finally the {}.", "Take the {} before the {}, then the {}.", "{} -> {} -> {}",
)  # fmt: skip
EVENTS = ("take the key", "open the door", "light the lamp", "ring the bell", "feed the dog")


@given(st.permutations(THINGS), st.sampled_from(LISTS), st.permutations(range(3)))
@settings(max_examples=60, deadline=None)
def test_the_order_of_a_list_matters(things: list[str], form: str, order: list[int]) -> None:
    first, second = form.format(*things[:3]), form.format(*(things[at] for at in order))
    assert differ(first, second) == (first != second) == differ(second, first)


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.sampled_from(["", ".5", " %"]))
@settings(max_examples=60, deadline=None)
def test_numbers_matter(first: int, second: int, rest: str) -> None:
    form = "Set the timeout of the client to {}{} before you retry."
    assert differ(form.format(first, rest), form.format(second, rest)) == (first != second)


@pytest.mark.parametrize(
    ("first", "second"), [("30", "thirty-one"), ("3", "four"), ("twice", "three times"), ("A1", "A2")]
)
def test_numbers_in_words_matter(first: str, second: str) -> None:
    assert differ(f"Press {first} in the hall.", f"Press {second} in the hall.")
    assert not differ("Press it 3 times.", "Press it three times.") and not differ("Press twice.", "Press two times.")


@given(st.permutations(EVENTS))
@settings(max_examples=40, deadline=None)
def test_what_comes_first_is_told_whatever_the_words(events: list[str]) -> None:
    a, b = events[:2]
    doing = {each: f"{each.split()[0].rstrip('e')}ing {each.partition(' ')[2]}" for each in events}
    same = [f"{a}, then {b}", f"{a} before {doing[b]}", f"After {doing[a]}, {b}.", f"Before {doing[b]}, {a}.",
            f"{b} after {doing[a]}"]  # fmt: skip
    turned = [f"{b}, then {a}", f"{b} before {doing[a]}", f"After {doing[b]}, {a}."]
    for one in same:
        assert not any(differ(one, other) for other in same)
        assert all(differ(one, other) and differ(other, one) for other in turned)


DIFFERENT = [
    ("Never press the lever when the lamp is green.", "Always press the lever when the lamp is green."),
    ("Don't open the chest.", "Open the chest."),
    ("Push the box left unless there is a wall.", "Push the box left if there is a wall."),
    ("You can enter without a ticket.", "You can enter with a ticket."),
    ("Rule A means B. B does not mean A.", "Rule B means A. A does not mean B."),
    ("Go north, then east, then north.", "Go north, then north, then east."),
    ("Up. Up. Left.", "Up. Left. Up."),
    ("The red shrine wants the coin and the blue shrine the wine.",
     "The blue shrine wants the coin and the red shrine the wine."),
    ("The knight guards the queen.", "The queen guards the knight."),
    ("Use pip 23.2, not pip 24.0.", "Use pip 24.0, not pip 23.2."),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second"), DIFFERENT)
def test_different_facts_are_told_apart(first: str, second: str) -> None:
    assert differ(first, second) and differ(second, first)
    assert not differ(first, first) and not differ(first, first.upper().capitalize() if "A" not in first else first)


PARAPHRASES = [
    ("When the lamp is red, press the lever.", "Press the lever when the lamp is red."),
    ("Offer the red shrine the coin, then the wine.", "Offer the coin to the red shrine first, and then the wine."),
    ("Avoid the ice on the left side.", "Never step on the ice on the left side."),
    ("Don't push a box into a corner.", "Never push a box into a corner."),
    ("Search for the title of the film first.", "First, search for the film's title."),
    ("Submit as soon as the tests pass.", "As soon as the tests pass, submit."),
    ("Ice and holes are dangerous.", "Holes and ice are dangerous."),
    ("The goal is in the lower right corner.", "The goal lies in the lower right corner."),
    ("Click on the product, choose the color blue, then buy.",
     "Click the product, choose blue as the color, and then buy it."),
    ("Symbol X is the goal and symbol Y is a hole.", "Symbol Y is a hole and symbol X is the goal."),
    ("Blue shrines want wine. Red shrines want coins.", "Red shrines want coins. Blue shrines want wine."),
    ("To win, go right twice and then down.", "Go right twice and then down to win."),
    ("Once the door is open, walk through it.", "Walk through the door once it is open."),
    ("The box cannot be pulled, only pushed.", "Boxes can't be pulled, only pushed."),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second"), PARAPHRASES)
def test_paraphrases_stay_what_the_embedder_holds_them_for(first: str, second: str) -> None:
    assert not differ(first, second) and not differ(second, first)


def test_what_an_embedder_takes_for_one_is_told_apart() -> None:
    embedder = LexicalEmbedder()
    one, other = embedder.embed(["coin, wine, mask", "mask, wine, coin"])
    assert float(one @ other) > 0.99 and differ("coin, wine, mask", "mask, wine, coin")


@given(st.text(max_size=40), st.text(max_size=40))
@settings(max_examples=150, deadline=None)
def test_any_text_is_compared_and_is_like_itself(first: str, second: str) -> None:
    assert differ(first, second) == differ(second, first) and not differ(first, first)
