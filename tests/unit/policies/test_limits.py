"""Which models stay in memory: by their size, what they learn and the machine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from crl.policies.limits import all_stay

GB = 10**9


@pytest.mark.parametrize(
    ("size", "adapted", "memory", "stays"),
    [
        (60 * 10**6, False, 8 * GB, True),
        (60 * 10**6, True, GB // 2, True),
        (538 * 10**6, False, 64 * GB, False),
        (538 * 10**6, True, 8 * GB, False),
        (538 * 10**6, True, 16 * GB, True),
        (4 * GB, True, 256 * GB, False),
    ],
)
def test_models_stay_where_there_is_room(
    size: int, adapted: bool, memory: int, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=memory))
    assert all_stay(size, adapted=adapted) is stays
