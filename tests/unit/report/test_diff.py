"""The bank diff of a real run, against SQL over the snapshots; and of a round that has not published its bank."""

from __future__ import annotations

from pathlib import Path

import pytest

from crl.errors import BadInput
from crl.report.diff import BankDiff, bank_diff, proposed_diff
from crl.report.views import query
from tests.tiny_run import ROUNDS, cut_back

SNAPSHOT = "SELECT entry_id, text FROM bank_text WHERE round = $round"


def by_sql(path: Path, number: int) -> dict[str, set[tuple[str | None, ...]]]:
    """Entries that are new, gone or rewritten, from two snapshots alone."""
    before, after = (dict(query(path, SNAPSHOT, {"round": each})[1]) for each in (number - 1, number))
    return {
        "new": {(name, after[name]) for name in after.keys() - before.keys()},
        "gone": {(name, before[name]) for name in before.keys() - after.keys()},
        "rewritten": {
            (name, before[name], after[name]) for name in before.keys() & after if before[name] != after[name]
        },
    }


def net(diff: BankDiff) -> dict[str, set[tuple[str | None, ...]]]:
    """The same from the diff: what its changes come to, one after the other."""
    first: dict[str, str | None] = {}
    last: dict[str, str | None] = {}
    for change in diff.changes:
        if change.kind == "rejected" or change.entry_id is None:
            continue
        for name, old, new in [(change.entry_id, change.before, change.after)] + [
            (parent.entry_id, parent.text, None) for parent in change.parents
        ]:
            first.setdefault(name, old)
            last[name] = new
    return {
        "new": {(name, last[name]) for name in last if first[name] is None and last[name] is not None},
        "gone": {(name, first[name]) for name in last if first[name] is not None and last[name] is None},
        "rewritten": {
            (name, first[name], last[name])
            for name in last
            if first[name] is not None and last[name] is not None and first[name] != last[name]
        },
    }


@pytest.mark.slow
def test_the_diff_of_a_round_is_what_the_snapshots_say(finished: Path) -> None:
    for number in range(1, ROUNDS + 1):
        diff = bank_diff(finished, number)
        assert net(diff) == by_sql(finished, number) and not diff.proposed
        sizes = [query(finished, "SELECT count(*) FROM bank WHERE round = $r", {"r": each})[1][0][0] for each in
                 (number - 1, number)]  # fmt: skip
        assert [diff.size_before, diff.size_after] == sizes
        asked = "SELECT operation_id, reason FROM bank_events WHERE round = $r AND kind = 'rejected'"
        rejected = query(finished, asked, {"r": number})[1]
        assert {(change.operation_id, change.reason) for change in diff.of("rejected")} == set(rejected)
    assert bank_diff(finished, 1).of("added"), "the run has something to compare"


def test_what_a_round_would_do_is_what_it_did(copied: Path) -> None:
    done = bank_diff(copied, ROUNDS)
    cut_back(copied, ROUNDS, "consolidate")
    before = sorted(path.relative_to(copied) for path in copied.rglob("*"))
    proposed = proposed_diff(copied, ROUNDS)
    assert (proposed.changes, proposed.size_after, proposed.proposed) == (done.changes, done.size_after, True)
    refused = {change.operation_id: "rejected by Ada" for change in done.changes if change.operation_id}
    left_out = proposed_diff(copied, ROUNDS, refused)
    assert left_out.counts() == {"rejected": len(refused)} and left_out.size_after == done.size_before
    assert all(change.wanted for change in left_out.of("rejected") if change.asked in ("add", "update"))
    assert sorted(path.relative_to(copied) for path in copied.rglob("*")) == before, "nothing was written"
    with pytest.raises(BadInput, match="has published no bank"):
        bank_diff(copied, ROUNDS)
    with pytest.raises(BadInput, match="has not come so far"):
        proposed_diff(copied, ROUNDS + 1)
