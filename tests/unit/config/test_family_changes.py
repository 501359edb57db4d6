"""A task that changes while a run goes on: which rounds play what, what is refused, and that digests stay."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from crl.config.environments import FamilyConfig
from crl.envs.realms import RealmsConfig, experience_text, hidden_rule, layouts


def family(*changes: dict[str, Any]) -> FamilyConfig:
    return FamilyConfig.model_validate(
        {
            "name": "realm",
            "environment": {"kind": "realms", "world": 7, "realm": 3},
            **({"changes": list(changes)} if changes else {}),
        }
    )


def test_rounds_up_to_a_change_have_the_old_settings_and_later_ones_all_that_came() -> None:
    changed = family(
        {"round": 3, "environment": {"version": 1}}, {"round": 5, "environment": {"version": 2, "max_turns": 12}}
    )
    found = [(each.version, each.max_turns) for each in (realm_in(changed, number) for number in range(7))]
    assert found == [(0, 10), (0, 10), (0, 10), (1, 10), (1, 10), (2, 12), (2, 12)]
    assert changed.in_round(2) is changed
    assert changed.in_round(4).changes == []


def realm_in(changed: FamilyConfig, number: int) -> RealmsConfig:
    environment = changed.in_round(number).environment
    assert isinstance(environment, RealmsConfig)
    return environment


def test_a_family_that_never_changes_is_dumped_as_it_was_before_there_were_changes() -> None:
    dumped = family().model_dump(mode="json")
    assert "changes" not in dumped
    assert "version" not in dumped["environment"]
    changed = family({"round": 3, "environment": {"version": 1}})
    assert FamilyConfig.model_validate(changed.model_dump(mode="json")) == changed


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([{"round": 3, "environment": {"version": 1}}, {"round": 3, "environment": {"version": 2}}], "rounds"),
        ([{"round": 5, "environment": {"version": 1}}, {"round": 3, "environment": {"version": 2}}], "in order"),
        ([{"round": 3, "environment": {"kind": "frozenlake"}}], "sets kind"),
        ([{"round": 3, "environment": {"held_out_from": 5}}], "sets held_out_from"),
        ([{"round": 3, "environment": {"version": 0}}], "changes nothing"),
        ([{"round": 3, "environment": {}}], "at least 1"),
        ([{"round": 0, "environment": {"version": 1}}], "greater than or equal to 1"),
        ([{"round": 3, "environment": {"verison": 1}}], "verison"),
        ([{"round": 3, "environment": {"objects": 12}}], "12 objects need"),
    ],
)
def test_changes_that_cannot_be_meant_are_refused(changes: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        family(*changes)


def test_nothing_that_a_note_says_of_the_old_rule_is_right_of_the_new_one() -> None:
    for world in range(20):
        for realm in range(8):
            old = RealmsConfig(world=world, realm=realm)
            new = RealmsConfig(world=world, realm=realm, version=1)
            assert new.make().truth(experience_text(*hidden_rule(old))) == 0
            assert old.make().truth(experience_text(*hidden_rule(new))) == 0
            assert hidden_rule(new) == hidden_rule(RealmsConfig(world=world, realm=realm, version=1))


def test_a_version_keeps_apart_what_is_held_out() -> None:
    both = [layouts(RealmsConfig(world=3)), layouts(RealmsConfig(world=3, version=1))]
    trained = {drawn.of(seed).content for drawn in both for seed in range(300)}
    held_out = {drawn.of(1_000_000 + seed).content for drawn in both for seed in range(100)}
    assert not trained & held_out
