"""Templates are filled once; braces in values and unknown names."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.errors import BadInput
from crl.records import numbered
from crl.text.outputs import check, fill, placeholders


def test_fill():
    assert fill('{goal}: {"op": 1} {} {Goal} {goal}', {"goal": "{goal}", "unused": "x"}) == (
        '{goal}: {"op": 1} {} {Goal} {goal}'
    )
    assert placeholders("{a} {b_2} {B} {a}") == {"a", "b_2"}


def test_a_name_without_a_value_is_refused_with_its_place():
    with pytest.raises(BadInput, match=r"unknown placeholder \{goall\}"):
        fill("{goall}", {"goal": "x"})
    with pytest.raises(BadInput) as caught:
        check("{x}", ("goal", "outcome"), where="prompts: distill.first")
    assert "prompts: distill.first" in str(caught.value) and "{goal}, {outcome}" in str(caught.value)


@settings(deadline=None)
@given(st.text(), st.text(), st.text())
def test_values_are_never_expanded(before, first, second):
    template = before.replace("{", "").replace("}", "") + "{a}{b}"
    assert fill(template, {"a": first, "b": second}) == template.removesuffix("{a}{b}") + first + second


def test_a_line_of_a_text_is_not_mistaken_for_another_text():
    assert numbered(["Do:\n2. Go north", "wait"]) == "1. Do:\n   2. Go north\n2. wait"
