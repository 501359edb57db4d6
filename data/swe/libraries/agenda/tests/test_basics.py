import pytest
from agenda import Scheduler


def test_calls_in_order_of_time() -> None:
    scheduler, seen = Scheduler(), []
    scheduler.call_at(3.0, seen.append, "c")
    scheduler.call_at(1.0, seen.append, "a")
    scheduler.call_later(2.0, seen.append, "b")
    scheduler.run_until(10.0)
    assert seen == ["a", "b", "c"]
    assert scheduler.now == 10.0


def test_cancel() -> None:
    scheduler, seen = Scheduler(), []
    handle = scheduler.call_at(1.0, seen.append, "a")
    assert handle.cancel()
    scheduler.run_until(2.0)
    assert seen == []


def test_repeat() -> None:
    scheduler, seen = Scheduler(), []
    scheduler.call_every(2.0, seen.append, "tick", times=2)
    scheduler.run_until(10.0)
    assert seen == ["tick", "tick"]


def test_past_times() -> None:
    with pytest.raises(ValueError):
        Scheduler(5.0).call_at(4.0, print)
