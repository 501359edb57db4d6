"""Which models stay in memory: by their size, what they learn and the machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from crl.policies import limits

GB = 10**9


def test_a_container_has_the_memory_that_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=64 * GB))
    monkeypatch.setattr(limits, "_CONTAINER", tmp_path / "memory.max")
    for said, stays in (("max\n", True), (f"{8 * GB}\n", False), (f"{16 * GB}\n", True)):
        (tmp_path / "memory.max").write_text(said)
        assert limits.all_stay(538 * 10**6, adapted=True) is stays, said


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
    monkeypatch.setattr(limits, "_CONTAINER", Path("/nowhere"))
    assert limits.all_stay(size, adapted=adapted) is stays
