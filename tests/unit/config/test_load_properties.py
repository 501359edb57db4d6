"""The loader answers any file and any setting with an experiment or BadInput, and never with another exception."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crl.config import Experiment
from crl.config.load import load_experiment, read_yaml
from crl.config.yaml_text import read_value
from crl.errors import BadInput

ROOT = Path(__file__).parents[3]
TINY = yaml.safe_load((ROOT / "conf/tiny.yaml").read_text(encoding="utf-8"))
RELAXED = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

# Text such as 1e5 is left out: here it is a number, as in YAML 1.2; plain yaml takes it for text.
TEXT = st.text(max_size=8).filter(lambda text: re.fullmatch(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+", text) is None)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | st.integers(), inner, max_size=3),
    max_leaves=8,
)


def keys(data: Any, before: str = "") -> list[str]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [each for key, value in items for each in (f"{before}{key}", *keys(value, f"{before}{key}."))]


@RELAXED
@given(st.binary(max_size=60) | st.text(max_size=60, alphabet="[]{}&*a:-!?|>'\"#%@ \n\t1_.0x<~").map(str.encode))
def test_any_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any.yaml"
    path.write_bytes(content)
    with contextlib.suppress(BadInput):
        load_experiment(path)


@RELAXED
@given(key=st.sampled_from(keys(TINY)), value=VALUE)
def test_any_value_at_any_key(key: str, value: Any) -> None:
    with contextlib.suppress(BadInput):
        assert isinstance(load_experiment(ROOT / "conf/tiny.yaml", {key: value}), Experiment)


@RELAXED
@given(VALUE)
def test_what_plain_yaml_reads_is_read_the_same(value: Any) -> None:
    text = yaml.safe_dump(value)
    with contextlib.suppress(yaml.YAMLError):
        assert repr(read_value(text)) == repr(yaml.safe_load(text))


def test_every_file_of_the_repository_is_read_as_before() -> None:
    for path in (ROOT / "conf").rglob("*.yaml"):
        assert read_yaml(path) == yaml.safe_load(path.read_text(encoding="utf-8")), path


def test_an_alias_is_what_it_stands_for_and_a_merge_key_works() -> None:
    assert read_value("a: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}") == {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1, "e": 2}}
    assert read_value("[" * 99 + "]" * 99) is not None
    with pytest.raises(yaml.YAMLError, match="levels of nesting"):
        read_value("[" * 101 + "]" * 101)


def test_the_place_of_a_number_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"name: x\nmethod:\n  seed: {'9' * 10_000}\n")
    with pytest.raises(BadInput, match="line 3, column 9") as refused:
        read_yaml(path)
    assert len(str(refused.value)) < 500


KEY = st.from_regex(r"[a-z]{1,3}", fullmatch=True).filter(lambda key: yaml.safe_load(key) == key)
"""Words that are texts without quotes; `no` is not."""


@RELAXED
@given(st.dictionaries(KEY, VALUE, min_size=1, max_size=4), st.data())
def test_a_key_that_is_there_twice_is_named_with_both_lines(outer: dict[str, Any], data: st.DataObject) -> None:
    again = data.draw(st.sampled_from(sorted(outer)))
    try:
        text = yaml.safe_dump(outer, sort_keys=False)
        assert read_value(text) is not None
    except yaml.YAMLError:
        return  # a whole number of more than 64 bits
    depth = data.draw(st.integers(0, 2))
    for _ in range(depth):
        text = "in:\n" + "".join(f"  {line}\n" for line in text.splitlines())
    text += f"{'  ' * depth}{again}: 1\n"
    with pytest.raises(yaml.YAMLError, match=f"the key '{again}' twice, first in line") as refused:
        read_value(text)
    assert f"line {len(text.splitlines())}, column" in str(refused.value)
    with pytest.raises(yaml.YAMLError, match="twice"):
        read_value(f"- {{{again}: 1, b: {{x: 1}}, {again}: 2}}")


def test_equal_keys_of_two_kinds_are_one_key_twice() -> None:
    for text in ("1: a\ntrue: b", "0x10: a\n16: b", "a: 1\n'a': 2", "{a: 1, ? a : 2}", "a: {<<: {b: 1}, <<: {c: 2}}"):
        with pytest.raises(yaml.YAMLError, match="twice"):
            read_value(text)
    merged = "base: {q: &b {k: 1, j: 1}}\ndeep: {x: {y: &x {<<: *b, k: 2}}}\nup: {<<: *x, k: 3}"
    assert read_value(merged) == yaml.safe_load(merged)


@RELAXED
@given(st.text("0123456789_:+-.", min_size=1, max_size=8))
def test_a_number_is_what_its_digits_say_or_refused(text: str) -> None:
    try:
        value = read_value(f"a: [{text}]")["a"][0]
    except (yaml.YAMLError, KeyError, TypeError):
        return
    if type(value) is int:
        assert value == int(text.replace("_", ""))
    elif type(value) is float and value == value and abs(value) != float("inf"):
        assert value == float(text.replace("_", ""))


@pytest.mark.parametrize("text", ["010", "-007", "0_1", "1:30:00", "12:30", "1:30.5", "+190:20:30"])
def test_a_number_that_versions_of_yaml_read_differently_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"name: x\nmethod:\n  seed: {text}\n")
    with pytest.raises(BadInput, match="versions of YAML read differently") as refused:
        read_yaml(path)
    assert "line 3, column 9" in str(refused.value) and text in str(refused.value)
    assert read_value(f"a: '{text}'") == {"a": text}
