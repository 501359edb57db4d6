"""Pairs of a trial that an environment broke: the rule counts as the trial does, however many are left."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import product

import pytest

from crl.checks import check_tables
from crl.errors import DataCheckFailed
from crl.recipes.complementary.mechanisms.trial import TextKey, result_of
from crl.records import Episode, TrialResult, table_of
from tests.marks import sampled

LAYOUTS = 3
NOTE = hashlib.sha256(b"note").hexdigest()


def played(layout: int, *, guided: bool, broke: bool) -> Episode:
    won = guided and not broke
    return Episode(
        episode_id=f"t{layout}{guided}", round=1, family="room", group=layout, member=int(guided),
        environment_seed=layout, stream="trial", guided=guided, entry_ids=["e"] if guided else [],
        content_digests=[NOTE] if guided else [], experiences=["note"] if guided else [], goal="reach >", success=won,
        reward=float(won), turns=1, invalid_actions=0, tokens_read=2, tokens_sampled=2,
        stop_reason="error" if broke else "success" if won else "failure",
        last_observation=None if broke else "@>", error="environment_KeyError" if broke else None,
        generation_ids=[f"tg{layout}{guided}"],
    )  # fmt: skip


@pytest.mark.parametrize("broken", sampled([(each,) for each in product((None, "noted", "free"), repeat=LAYOUTS)], 4))
def test_the_rule_counts_what_the_trial_counts(broken: tuple[str | None, ...]) -> None:
    pairs = [
        (played(layout, guided=True, broke=half == "noted"), played(layout, guided=False, broke=half == "free"))
        for layout, half in enumerate(broken)
    ]
    result = result_of(TextKey("room", NOTE), pairs, round=1)
    left = broken.count(None)
    assert result.pairs == (left if 2 * left >= LAYOUTS else 0)
    episodes = table_of(Episode, [each for pair in pairs for each in pair])
    check_tables({Episode: episodes, TrialResult: table_of(TrialResult, [result])}, where="here")
    wrong = replace(result, pairs=result.pairs + 1)
    with pytest.raises(DataCheckFailed, match="what its matched pairs say"):
        check_tables({Episode: episodes, TrialResult: table_of(TrialResult, [wrong])}, where="here")
