"""WebShop as it is played: pages word for word, what actions do, endings, determinism."""

from __future__ import annotations

import hashlib
import random
import sys

import pytest

from crl.envs import check_environment
from crl.errors import BadInput
from crl.protocols import Instructive, Leveled, StopReason
from crl.worlds.webshop import WebShopConfig
from crl.worlds.webshop.own import records
from tests.worlds.webshop.webshop_files import entry, record, write

OWN = WebShopConfig(products=200)
ASIN = record(0)["asin"]


@pytest.fixture(autouse=True)
def _rapidfuzz(request):
    if "without_rapidfuzz" not in request.node.name:
        pytest.importorskip("rapidfuzz", reason="rapidfuzz is not installed (extra envs)")


@pytest.fixture
def shop(tmp_path):
    """A shop with 23 lamps, the first of them wanted in red for less than its limit."""
    listed = [record(3 * number) for number in range(23)]
    entries = {ASIN: entry("easy clean", "light weight", text="Find me an easy clean lamp")}
    config = write(tmp_path, listed, entries)

    def opened(**changes):
        environment = config.model_copy(update=changes).make()
        goals = environment.site.catalog.goals
        seed = next(index for index in range(len(goals)) if ("color", "red") in goals.get(index).wanted.options)
        (start,) = environment.reset_many([seed])
        return environment, start

    return opened


def act(environment, *actions):
    for action in actions:
        step = environment.step_many({0: action})[0]
        assert step.legal and not step.feedback, action
    return step


def test_pages_word_for_word(shop):
    environment, start = shop(max_turns=100)
    goal = start.goal
    assert goal.startswith("Find me an easy clean lamp with color: red, and price lower than ")
    assert start.observation == f"WebShop [SEP] Instruction: [SEP] {goal} [SEP] Search"
    assert start.actions.form == "search[words]"
    head = f"Instruction: [SEP] {goal} [SEP] Back to Search"
    step = act(environment, "search[desk lamp]")
    lines = step.observation.split(" [SEP] ")
    assert lines[:5] == [*head.split(" [SEP] "), "Page 1 (Total results: 23)", "Next >"]
    assert lines[5:8] == [ASIN, "Maker0 Desk Lamp", "$12.5"] and len(lines) == 5 + 3 * 10
    assert step.actions.form.startswith(
        f"search[words] or click[x] with x one of: back to search, next >, {ASIN.lower()}"
    )
    last = act(environment, "click[Next >]", "click[next >]")
    assert last.observation.split(" [SEP] ")[3:6] == ["Page 3 (Total results: 23)", "< Prev", "Next >"]
    assert last.observation.count("Maker") == 3
    beyond = act(environment, "click[next >]")
    assert beyond.observation == f"{head} [SEP] Page 4 (Total results: 23) [SEP] < Prev [SEP] Next >"
    item = act(environment, "click[< prev]", "click[< prev]", "click[< prev]", f"click[{ASIN}]").observation
    assert item == (
        f"{head} [SEP] < Prev [SEP] color [SEP] red [SEP] navy blue [SEP] Maker0 Desk Lamp [SEP] Price: $12.5 [SEP] "
        "Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Attributes [SEP] Buy Now"
    )
    under = f"{head} [SEP] < Prev"
    assert act(environment, "click[description]").observation == f"{under} [SEP] A desk lamp that is easy to clean."
    features = act(environment, "click[< prev]", "click[Features]").observation
    assert features == f"{under} [SEP] It lasts. [SEP] It is light weight."
    assert act(environment, "click[< prev]", "click[reviews]").observation == under
    attributes = act(environment, "click[< prev]", "click[attributes]").observation
    assert attributes == (
        f"{under} [SEP] easy clean [SEP] light weight [SEP] home [SEP] desk lamp [SEP] Home › Things › Desk Lamp"
    )
    assert act(environment, "click[< prev]", "click[red]").observation == item, "what is chosen is not shown"
    bought = act(environment, "click[Buy Now]")
    assert bought.observation == (
        f"Thank you for shopping with us! [SEP] Purchased [SEP] asin [SEP] {ASIN} [SEP] options [SEP] "
        '{"color": "red"} [SEP] Your score (min 0.0, max 1.0) [SEP] 1.0'
    )
    assert (bought.done, bought.success, bought.reward, bought.stop_reason) == (True, True, 1.0, StopReason.success)
    with pytest.raises(RuntimeError):
        environment.step_many({0: "search[x]"})


def test_the_rich_view_marks_buttons_and_what_was_clicked(shop):
    environment, start = shop(view="rich")
    assert start.observation == f"WebShop\nInstruction: \n{start.goal}\n[button] Search [button_]\n"
    results = act(environment, "search[desk lamp]", f"click[{ASIN}]", "click[< prev]").observation
    assert f"\n\n[clicked button] {ASIN} [clicked button_]\nMaker0 Desk Lamp\n" in results
    item = act(environment, f"click[{ASIN}]", "click[red]").observation
    assert item.startswith("You have clicked red.\nInstruction:\n")
    assert "color\n  [clicked button] red [clicked button_]\n  [button] navy blue [button_]\nMaker0" in item


def test_the_short_view_names_what_can_be_clicked(shop):
    environment, start = shop(view="short", show_missing=True)
    assert start.observation == "Search page." and "brackets" in start.actions.form
    results = act(environment, "search[desk lamp]").observation.splitlines()
    assert results[0] == "Results, page 1 of 3:" and results[1] == f"[{ASIN.lower()}] Maker0 Desk Lamp $12.5"
    assert results[-1] == "[back to search] [next >]"
    last = act(environment, "click[next >]", "click[next >]").observation
    assert last.endswith("[back to search] [< prev]"), "there is nothing behind the last page"
    assert act(environment, "search[zzz]").observation == "Results, page 1 of 1:\nNothing was found.\n[back to search]"
    item = act(environment, "search[desk lamp]", f"click[{ASIN}]", "click[navy blue]").observation
    assert item == (
        "Maker0 Desk Lamp\nPrice: $12.5\ncolor: [red] [navy blue]\nChosen: color: navy blue\n"
        "[back to search] [< prev] [description] [features] [reviews] [attributes] [buy now]"
    )
    assert act(environment, "click[reviews]").observation.splitlines()[:2] == [
        "Reviews of Maker0 Desk Lamp", "There are none.",
    ]  # fmt: skip
    bought = act(environment, "click[< prev]", "click[buy now]")
    # One attribute, one option, the price: two of three.
    assert (bought.success, bought.stop_reason) == (False, StopReason.failure) and bought.reward == 2 / 3
    assert bought.observation == (
        "Bought: Maker0 Desk Lamp (color: navy blue).\nScore: 0.67 of 1.\nNot met: color: red."
    )


def test_long_texts_are_cut_in_the_short_view_and_nowhere_else(tmp_path):
    long = record(0, name="Lamp " * 100, small_description=["word " * 500] * 30, full_description="d" * 10_000)
    for view, most in (("short", 4500), ("text", 10**6)):
        environment = write(tmp_path, [long]).model_copy(update={"view": view}).make()
        environment.reset_many([0])
        step = act(environment, "search[lamp]", f"click[{ASIN}]", "click[features]")
        assert len(step.observation) < most and ("…" in step.observation) == (view == "short")
        assert ("- … and 22 more" in step.observation) == (view == "short")
    assert len(step.observation) > 70_000


def test_what_is_not_possible_changes_nothing_and_spends_a_turn(shop):
    environment, _ = shop(max_turns=20)
    page = act(environment, "search[desk lamp]").observation
    wrong = [None, "", "hello", "search[]", "click[]", "click[search]", "click[buy now]", "click[red]", "Click[next >]",
             "buy now", "click next >", "I will click[next >]", "click[< prev]", "click[zz]"]  # fmt: skip
    for action in wrong:
        step = environment.step_many({0: action})[0]
        assert not step.legal and step.observation == page and not step.done, action
        assert "search[words] or click[x] with x one of: back to search, next >" in step.feedback
    assert act(environment, "  click[ NEXT  > ] and so on").observation != page, "blanks and what follows do not matter"
    for _ in range(4):
        step = environment.step_many({0: "hm"})[0]
    assert (step.done, step.reward, step.stop_reason) == (True, 0.0, StopReason.turn_limit)
    assert step.observation.endswith("\nNo turns are left.")


def test_options_are_forgotten_by_a_search_and_on_the_way_back(shop):
    environment, _ = shop(max_turns=100)
    for away in ("click[< prev]", "search[desk lamp]"):
        act(environment, "search[desk lamp]", f"click[{ASIN}]", "click[red]", "click[features]", "click[< prev]")
        assert environment._slots[0].visit.chosen == {"color": "red"}, "but not by a look at the features"
        act(environment, away, f"click[{ASIN}]")
        assert environment._slots[0].visit.chosen == {}
    act(environment, "click[red]", "click[navy blue]")
    assert environment._slots[0].visit.chosen == {"color": "navy blue"}, "one value of each option"
    assert act(environment, "click[back to search]").observation.startswith("WebShop [SEP]")


def test_odd_options_can_be_chosen_and_buttons_stay_buttons(tmp_path):
    odd = ["größe [neu] 😀", "buy now", "", "two  blanks"]
    options = {"a": [{"value": value} for value in odd], "b": [{"value": "two  blanks"}]}
    environment = write(tmp_path, [record(0, customization_options=options)]).make()
    environment.reset_many([0])
    act(environment, "search[lamp]", f"click[{ASIN}]", "click[größe [neu] 😀]", "click[two blanks]")
    assert environment._slots[0].visit.chosen == {"a": "größe [neu] 😀", "b": "two  blanks"}, (
        "of two with one value the last"
    )
    assert act(environment, "click[buy now]").done


# -- our own catalog -------------------------------------------------------------------------------------------------


def test_our_catalog_is_large_enough_and_the_same_at_any_size():
    made = list(records(1000))
    assert made[:50] == list(records(50)) and len({record["asin"] for record, _ in made}) == 1000
    assert len({record["category"] for record, _ in made}) == 5
    assert len({record["query"] for record, _ in made}) == 40
    assert all(len(entry["attributes"]) >= 3 and len(record["customization_options"]) == 2 for record, entry in made)
    assert len(WebShopConfig().make().site.catalog.goals) > 2000


def test_the_oracle_meets_goals_and_wrong_options_do_not():
    environment = WebShopConfig().make()
    seeds = [*range(60), *range(1_000_000, 1_000_060)]
    environment.reset_many(seeds)
    assert isinstance(environment, Leveled) and isinstance(environment, Instructive)
    for slot in range(len(seeds)):
        step = None
        while step is None or not step.done:
            step = environment.step_many({slot: environment.oracle(slot)})[slot]
            assert step.legal
        assert step.success and step.reward == 1.0
        assert environment.oracle(slot) is None
    environment.reset_many(seeds)
    worth = []
    for slot in range(len(seeds)):  # the right product with no option: the options count
        action = environment.oracle(slot)
        while "search" in action or action[6:-1] in (*environment.site.links(environment._slots[slot].visit), "next >"):
            environment.step_many({slot: action})
            action = environment.oracle(slot)
        worth.append(environment.step_many({slot: "click[buy now]"})[slot].reward)
    assert max(worth) < 1


def test_no_goal_is_both_trained_and_held_out():
    environment, sides = WebShopConfig().make(), []
    for seeds in (range(3000), range(1_000_000, 1_000_500)):
        starts = environment.reset_many(seeds)
        sides.append(
            ({environment.content(slot) for slot in range(len(seeds))}, {start.observation for start in starts})
        )
    (trained, seen), (held_out, seen_there) = sides
    assert len(trained) > 1000 and len(held_out) == 500
    assert not trained & held_out and not seen & seen_there


def walk(config, seeds, width):
    """A digest of everything that random visits show, `width` at a time."""
    environment, found = config.make(), {}
    for at in range(0, len(seeds), width):
        part = seeds[at : at + width]
        shown = {seed: [start] for seed, start in zip(part, environment.reset_many(part), strict=True)}
        generators = [random.Random(f"walk {seed}") for seed in part]
        live = dict(enumerate(part))
        while live:
            actions = {}
            for slot in live:
                clickable = environment.site.clickable(environment._slots[slot].visit)
                words = environment._slots[slot].visit.goal.text.split()
                search = f"search[{' '.join(generators[slot].sample(words, 3))}]"
                actions[slot] = f"click[{generators[slot].choice(clickable)}]" if clickable else search
            for slot, step in environment.step_many(actions).items():
                shown[part[slot]].append(step)
                if step.done:
                    del live[slot]
        found |= shown
    return hashlib.sha256(repr([found[seed] for seed in sorted(found)]).encode()).hexdigest()


def test_random_visits_are_equal_in_another_order_and_width_and_process(tmp_path):
    import subprocess

    seeds = [*range(20), *range(1_000_000, 1_000_010)]
    first = walk(OWN, seeds, 30)
    assert walk(OWN, seeds[::-1], 7) == first
    program = (
        "from tests.worlds.webshop.test_webshop_site import OWN, walk\n"
        "print(walk(OWN, [*range(20), *range(1_000_000, 1_000_010)], 4))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == first


def test_it_passes_the_check_before_a_run():
    for view in ("text", "rich", "short"):
        check_environment(OWN.model_copy(update={"view": view}))


def test_without_rapidfuzz_it_is_refused_by_name(monkeypatch):
    from crl.worlds.webshop import reward

    reward.rapidfuzz.cache_clear()
    monkeypatch.setitem(sys.modules, "rapidfuzz", None)
    with pytest.raises(BadInput, match="needs the package rapidfuzz") as caught:
        OWN.make()
    assert "pip install" in str(caught.value)
