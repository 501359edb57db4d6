"""The official schema: what is read from it, what is refused, and which goals and seeds come of it."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from crl.envs import check_environment
from crl.errors import BadInput
from crl.worlds.webshop import WebShopConfig
from crl.worlds.webshop.goals import NO_LIMIT
from tests.worlds.webshop.webshop_files import entry, record, write

pytest.importorskip("rapidfuzz", reason="rapidfuzz is not installed (extra envs)")


def products(folder, *records, **files):
    return write(folder, list(records), **files).make().site.catalog.products


@pytest.mark.parametrize(
    ("pricing", "tag", "lowest", "highest"),
    [
        ("$12.98", "$12.98", 12.98, 12.98),
        ("$1,847.00", "$1847.0", 1847.0, 1847.0),
        ("$16.99$26.99", "$16.99 to $26.99", 16.99, 26.99),
        ("$16.99 - $26.99", "$16.99 to $26.99", 16.99, 26.99),
        ("$26.99$16.99", "$26.99 to $16.99", 16.99, 26.99),
        ("$5.00$6.00$7.00", "$5.0 to $6.0", 5.0, 6.0),
        ("", "$100.0", 100.0, 100.0),
        (None, "$100.0", 100.0, 100.0),
        ("Currently unavailable", "$100.0", 100.0, 100.0),
        (float("nan"), "$100.0", 100.0, 100.0),
    ],
)
def test_prices(tmp_path, pricing, tag, lowest, highest):
    (product,) = products(tmp_path, record(1, pricing=pricing))
    assert product.price_tag == tag and lowest <= product.offered.price <= highest


def test_options_are_lower_cased_and_their_slashes_set_apart(tmp_path):
    options = {
        "Size": [{"value": " 6/7 Wide "}, {"value": "XL", "image": "x"}], "COLOR": None, "Style": [],
        "größe": [{"value": "Groß [neu] 😀"}],
    }  # fmt: skip
    (product,) = products(
        tmp_path, record(1, customization_options=options), entries={record(1)["asin"]: entry("a b", text=None)},
        human={record(1)["asin"]: [{"instruction": "x", "instruction_attributes": ["a b"], "instruction_options": []}]},
    )  # fmt: skip
    assert dict(product.options) == {"size": ("6 | 7 wide", "xl"), "style": (), "größe": ("groß [neu] 😀",)}


def test_what_scraped_records_leave_out_is_empty(tmp_path):
    bare = {"asin": "B1", "name": "Lamp", "small_description": None, "full_description": None, "pricing": None}
    (product, _) = products(tmp_path, bare, record(2), entries={record(2)["asin"]: entry("easy clean")})
    assert product.offered.bullets == ("",) and product.offered.attributes == ("DUMMY_ATTR",) and not product.options
    (one, _) = products(tmp_path, record(3, small_description="One text."), record(4))
    assert one.offered.bullets == ("One text.",)


def test_products_that_the_site_passes_over(tmp_path):
    listed = [
        record(1),
        record(1, name="Again"),
        record(2, asin="nan"),
        record(3, asin="LK_COLOR_B08ZRR3DZT"),
        record(4),
    ]
    found = products(tmp_path, *listed)
    assert [product.asin for product in found] == [record(1)["asin"], record(4)["asin"]]
    assert found[0].offered.title == record(1)["name"], "the first of two counts"
    with pytest.raises(BadInput, match="holds no product"):
        write(tmp_path, [record(1, asin="LK_COLOR_B08ZRR3DZT")]).make()
    config = write(tmp_path, [record(number) for number in range(9)]).model_copy(update={"products": 4})
    assert len(config.make().site.catalog.products) == 4


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"asin": 7}, "asin is 7"), ({"name": None}, "name is None"), ({"name": ["x"]}, "name is"),
        ({"query": 1}, "query is 1"), ({"pricing": 12.5}, "pricing is 12.5"), ({"pricing": "$"}, "pricing is"),
        ({"pricing": "$1.2.3"}, "pricing is"), ({"pricing": "$" + "9" * 400}, "pricing is"),
        ({"small_description": [1]}, "small_description is"),
        ({"full_description": {}}, "full_description is"),
        ({"customization_options": ["x"]}, "customization_options is"),
        ({"customization_options": {"Size": "x"}}, "option 'Size' is 'x'"),
        ({"customization_options": {"Size": [{"image": None}]}}, "a value of option 'Size' is"),
        ({"customization_options": {"Size": ["x"]}}, "a value of option 'Size' is 'x'"),
    ],
)  # fmt: skip
def test_a_malformed_record_is_named_with_its_file(tmp_path, changes, told):
    config = write(tmp_path, [record(0), record(1, **changes)], {record(0)["asin"]: entry("easy clean")})
    with pytest.raises(BadInput) as caught:
        config.make()
    assert told in caught.value.found and "items_shuffle_1000.json, record 1" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("items_shuffle_1000.json", "", "it holds no product"),
        ("items_shuffle_1000.json", '{"a": 1}', "it has no asin"),
        ("items_shuffle_1000.json", "7", "'7' is no record"),
        ("items_shuffle_1000.json", '[{"asin": "B1", "name": "x"}, {"asin"', "items_shuffle_1000.json, record 1"),
        ("items_shuffle_1000.json", '[{"asin": "B1", "name": "x"}', "items_shuffle_1000.json, record 0"),
        ("items_shuffle_1000.json", '[{"asin": "B1", "name": "x"},]', "items_shuffle_1000.json, record 1"),
        ("items_shuffle_1000.json", '[{"asin": "B1", "name": "x"} 5]', "items_shuffle_1000.json, record 0"),
        ("items_shuffle_1000.json", '[5, {"asin": "B1", "name": "x"}]', "items_shuffle_1000.json, record 0"),
        ("items_shuffle_1000.json", '[{"name": "x"}]', "it has no asin"),
        ("items_ins_v2_1000.json", "[]", "items_ins_v2_1000.json"),
        ("items_ins_v2_1000.json", '{"B000000000": 3}', "items_ins_v2_1000.json, record B000000000"),
        ("items_ins_v2_1000.json", '{"B000000000": {"attributes": "x"}}', "items_ins_v2_1000.json, record B000000000"),
        ("items_ins_v2_1000.json", '{"B000000000": {"instruction": "x"}}', "no instruction_attributes"),
        ("items_ins_v2_1000.json", "{}", "nothing to buy"),
        ("items_human_ins.json", '{"B000000000": {}}', "items_human_ins.json, record B000000000"),
        ("items_human_ins.json", '{"B000000000": [{"instruction": 1}]}', "record B000000000, instruction 0"),
        ("items_human_ins.json", "{", "items_human_ins.json"),
    ],
)
def test_a_malformed_file_is_named(tmp_path, name, text, told):
    config = write(tmp_path, [record(0)], human={} if "human" in name else None)
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        config.make()
    assert told in str(caught.value)


def test_missing_data_says_what_where_whose_and_how(tmp_path, monkeypatch):
    monkeypatch.setenv("WEBSHOP_DATA", str(tmp_path / "there"))
    with pytest.raises(BadInput) as caught:
        WebShopConfig(catalog="small", goals="human").make()
    text = str(caught.value)
    for told in ("items_shuffle_1000.json, items_ins_v2_1000.json, items_human_ins.json", "MIT", "gdown -O",
                 "princeton-nlp/WebShop", str(tmp_path / "there"), "$WEBSHOP_DATA", "~/.cache/webshop"):  # fmt: skip
        assert told in text
    write(tmp_path, [record(0)])
    monkeypatch.setenv("WEBSHOP_DATA", str(tmp_path))
    assert WebShopConfig(catalog="small").make().site.catalog.products, "found by the variable"
    with pytest.raises(ValueError, match="synthetic goals only"):
        WebShopConfig(goals="human")


# -- goals -------------------------------------------------------------------------------------------------------------


def test_synthetic_goals_are_one_for_each_combination(tmp_path):
    options = {"Size": [{"value": "S"}, {"value": "M"}, {"value": "L"}], "Color": [{"value": "Red"}, {"value": "Blue"}]}
    records = [record(0, customization_options=options, pricing="$12.50"), record(1, customization_options={})]
    entries = {records[0]["asin"]: entry("easy clean", text="Find a"), records[1]["asin"]: entry("x y", text="Find b")}
    goals = write(tmp_path, records, entries).make().site.catalog.goals
    found = [goals.get(index) for index in range(len(goals))]
    limits = {"20.00": 20.0, "30.00": 30.0, "40.00": 40.0, "50.00": 50.0}
    for goal in found:
        text, _, price = goal.text.partition(", and price lower than ")
        assert limits[price.removesuffix(" dollars")] == goal.wanted.price_upper > 20, "the larger of two"
        assert text == goal.content
    # In the order of products and combinations, shuffled as Python shuffles with the site's seed.
    combinations = [f"Find a with color: {c}, and size: {s}" for c in ("red", "blue") for s in ("s", "m", "l")]
    expected = [*combinations, "Find b"]
    random.Random(233).shuffle(expected)
    assert [goal.content for goal in found] == expected
    assert found[expected.index("Find b")].wanted.options == ()


def test_human_goals_name_their_own_options(tmp_path):
    asin = record(0)["asin"]
    human = {asin: [
        {"instruction": "a red one please.", "instruction_attributes": ["easy clean"], "instruction_options": ["red"]},
        {"instruction": "no wish", "instruction_attributes": [], "instruction_options": []},
        {"instruction": "a big one", "instruction_attributes": ["x"], "instruction_options": {"size": "l"}},
    ]}  # fmt: skip
    goals = write(tmp_path, [record(0, pricing="$985.00")], human=human).make().site.catalog.goals
    found = {goal.text: goal.wanted for goal in map(goals.get, range(len(goals)))}
    assert set(found) == {"a red one please", "a big one"}, "above 980 there is no price limit"
    assert found["a red one please"].options == ("red",) and found["a big one"].options == (("size", "l"),)
    assert {wanted.price_upper for wanted in found.values()} == {NO_LIMIT}


def test_splits_and_seeds(tmp_path):
    goals = WebShopConfig().make().site.catalog.goals
    assert len(goals) > 3000
    assert WebShopConfig().held_out_levels == 500
    assert WebShopConfig(held_out_split="development").held_out_levels == 1000
    assert WebShopConfig(held_out_from=None).held_out_levels is None
    held_out = [goals.of_seed(1000 + seed, 1000, "test") for seed in range(502)]
    assert held_out == [*range(500), 0, 1]
    assert [goals.of_seed(1000 + seed, 1000, "development") for seed in (0, 999, 1000)] == [500, 1499, 500]
    trained = Counter(goals.of_seed(seed, 10**6, "test") for seed in range(3000))
    assert min(trained) >= 1500 and len(trained) > 1000
    assert [goals.of_seed(seed, None, "test") for seed in (0, 7, len(goals))] == [0, 7, 0]


def test_rare_attributes_are_drawn_more_often(tmp_path):
    """Nine of ten goals ask for one attribute, one for another: they are drawn about equally often."""
    records = [record(number, customization_options={}) for number in range(40)]
    entries = {each["asin"]: entry("rare one" if number % 10 == 0 else "common one", text=f"Find {number}")
               for number, each in enumerate(records)}  # fmt: skip
    goals = write(tmp_path, records, entries).make().site.catalog.goals
    kinds = Counter(goals.get(goals.of_seed(seed, 10**6, "test")).wanted.attributes[0] for seed in range(2000))
    left = Counter(goals.get(index).wanted.attributes[0] for index in goals.training)
    expected = left["rare one"] / 4 / (left["rare one"] / 4 + left["common one"] / 36)
    assert 0 < left["rare one"] < 4 and abs(kinds["rare one"] / 2000 - expected) < 0.05


def test_what_is_held_out_is_not_trained_under_another_number(tmp_path):
    """Products whose instructions have the same words: of two such goals on both sides, the one of training is gone."""
    records = [record(number, customization_options={}) for number in range(40)]
    entries = {each["asin"]: entry("a b", text=f"Find {number % 20}") for number, each in enumerate(records)}
    config = write(tmp_path, records, entries).model_copy(update={"held_out_from": 1000})
    goals = config.make().site.catalog.goals
    split = (goals.test, goals.development, goals.training)
    sides = [[goals.get(index).content for index in side] for side in split]
    assert all(sides) and sorted([*sides[0], *sides[1], *sides[2]]) == sorted(
        2 * [f"Find {number}" for number in range(20)]
    )
    held_out = {*sides[0], *sides[1]}
    trained = {goals.get(goals.of_seed(seed, 1000, "test")).content for seed in range(200)}
    assert trained and trained <= set(sides[2]) and not trained & held_out
    one = write(tmp_path, [record(0, customization_options={})]).model_copy(update={"held_out_from": 1000})
    with pytest.raises(BadInput, match="no goal for") as caught:
        check_environment(one)
    assert "held_out_from: null" in str(caught.value)
    check_environment(one.model_copy(update={"held_out_from": None}))


def test_a_changed_file_is_read_again(tmp_path):
    config = write(tmp_path, [record(0)])
    assert config.make().site.catalog is config.make().site.catalog
    write(tmp_path, [record(0), record(1)])
    assert len(config.make().site.catalog.products) == 2


def test_large_files_are_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("crl.worlds.json_files._PIECE", 64)
    config = write(tmp_path, [record(number, name=f"Lämp {number} 😀") for number in range(30)])
    path = tmp_path / "items_shuffle_1000.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=3, ensure_ascii=False), encoding="utf-8-sig")
    assert [each.offered.title for each in config.make().site.catalog.products] == [
        f"Lämp {number} 😀" for number in range(30)
    ]
