"""A server whose database is busy answers 503: an experiment's slot is then asked for again, as one that is taken."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError

from flows import limits


@pytest.mark.parametrize(("status", "again"), [(423, True), (503, True), (500, False)])
def test_a_slot_is_asked_for_again(monkeypatch: pytest.MonkeyPatch, status: int, again: bool) -> None:
    @contextlib.contextmanager
    def refused(*names: Any, **options: Any) -> Iterator[None]:
        request = httpx.Request("POST", "http://127.0.0.1/api/v2/concurrency_limits/increment-with-lease")
        cause = httpx.HTTPStatusError("refused", request=request, response=httpx.Response(status, request=request))
        raise ConcurrencySlotAcquisitionError(names[0]) from cause
        yield

    monkeypatch.setattr(limits, "concurrency", refused)
    monkeypatch.setattr(limits, "require_limit", lambda name: SimpleNamespace(active_slots=0))
    with contextlib.ExitStack() as stack:
        if again:
            assert limits._take(stack, "crl-x") is False
            return
        with pytest.raises(ConcurrencySlotAcquisitionError):
            limits._take(stack, "crl-x")
