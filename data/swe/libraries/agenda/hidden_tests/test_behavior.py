import pytest
from agenda import Scheduler


def test_due_now_is_included_and_later_is_kept() -> None:
    scheduler, seen = Scheduler(), []
    scheduler.call_at(5.0, seen.append, "five")
    scheduler.call_at(5.5, seen.append, "later")
    assert scheduler.run_until(5.0) == 1
    assert seen == ["five"]
    assert scheduler.next_time() == 5.5
    assert scheduler.run_until(6.0) == 1
    assert seen == ["five", "later"]


def test_one_time_goes_by_priority_then_order() -> None:
    scheduler, seen = Scheduler(), []
    scheduler.call_at(1.0, seen.append, "b")
    scheduler.call_at(1.0, seen.append, "c")
    scheduler.call_at(1.0, seen.append, "a", priority=-1)
    scheduler.call_at(1.0, seen.append, "z", priority=3)
    scheduler.call_later(1.0, seen.append, "y", priority=2)
    scheduler.run_until(1.0)
    assert seen == ["a", "b", "c", "y", "z"]


def test_many_calls_of_one_time_keep_their_order() -> None:
    scheduler, seen = Scheduler(), []
    for number in range(20):
        scheduler.call_at(1.0, seen.append, number)
    scheduler.run_until(1.0)
    assert seen == list(range(20))


def test_the_clock_shows_the_time_of_the_call() -> None:
    scheduler, seen = Scheduler(10.0), []
    scheduler.call_later(2.5, lambda: seen.append(scheduler.now))
    scheduler.run_until(20.0)
    assert seen == [12.5]
    assert scheduler.now == 20.0


def test_calls_may_schedule_for_now() -> None:
    scheduler, seen = Scheduler(), []
    scheduler.call_at(1.0, lambda: scheduler.call_later(0.0, seen.append, "inner"))
    scheduler.call_at(1.0, seen.append, "outer")
    assert scheduler.run_until(1.0) == 3
    assert seen == ["outer", "inner"]


def test_calls_may_cancel_others() -> None:
    scheduler, seen = Scheduler(), []
    victim = scheduler.call_at(2.0, seen.append, "victim")
    scheduler.call_at(1.0, victim.cancel)
    scheduler.call_at(3.0, seen.append, "end")
    assert scheduler.run_until(5.0) == 2
    assert seen == ["end"]
    assert victim.state == "cancelled"


def test_cancel_says_whether_it_did_anything() -> None:
    scheduler = Scheduler()
    handle = scheduler.call_at(1.0, print)
    assert handle.cancel() is True
    assert handle.cancel() is False
    done = scheduler.call_at(1.0, list)
    scheduler.run_until(1.0)
    assert done.state == "done"
    assert done.cancel() is False
    assert done.waiting is False


def test_cancelled_calls_do_not_count() -> None:
    scheduler = Scheduler()
    first = scheduler.call_at(1.0, list)
    second = scheduler.call_at(2.0, list)
    first.cancel()
    assert scheduler.next_time() == 2.0
    assert scheduler.pending() == [second]
    second.cancel()
    assert scheduler.next_time() is None
    assert scheduler.run_next() is False
    assert scheduler.now == 0.0


def test_pending_is_in_order() -> None:
    scheduler = Scheduler()
    late = scheduler.call_at(9.0, list)
    early = scheduler.call_at(1.0, list)
    middle = scheduler.call_at(5.0, list)
    assert scheduler.pending() == [early, middle, late]


def test_run_next_moves_one_call() -> None:
    scheduler, seen = Scheduler(), []
    scheduler.call_at(2.0, seen.append, "a")
    scheduler.call_at(4.0, seen.append, "b")
    assert scheduler.run_next() is True
    assert seen == ["a"]
    assert scheduler.now == 2.0
    assert scheduler.run_next() is True
    assert scheduler.run_next() is False
    assert scheduler.now == 4.0


def test_repeated_calls_keep_their_beat() -> None:
    scheduler, times = Scheduler(1.0), []
    scheduler.call_every(0.1, lambda: times.append(scheduler.now))
    scheduler.run_until(1.35)
    scheduler.run_until(2.0)
    assert len(times) == 10
    assert times[0] == 1.0 + 0.1
    assert times[6] == 1.0 + 7 * 0.1
    assert times[9] == 1.0 + 10 * 0.1


def test_repeated_calls_end() -> None:
    scheduler, seen = Scheduler(), []
    handle = scheduler.call_every(2.0, seen.append, "tick", times=3)
    assert scheduler.run_until(5.0) == 2
    assert handle.state == "waiting"
    assert scheduler.run_until(50.0) == 1
    assert handle.state == "done"
    assert handle.count == 3
    once = scheduler.call_every(1.0, seen.append, "once", times=1)
    scheduler.run_until(60.0)
    assert once.count == 1


def test_a_repeated_call_cancels_itself() -> None:
    scheduler, seen = Scheduler(), []

    def tick() -> None:
        seen.append(scheduler.now)
        if len(seen) == 2:
            handle.cancel()

    handle = scheduler.call_every(1.0, tick)
    assert scheduler.run_until(10.0) == 2
    assert seen == [1.0, 2.0]
    assert handle.state == "cancelled"


def test_repeats_come_behind_calls_scheduled_before() -> None:
    scheduler, seen = Scheduler(), []
    scheduler.call_every(1.0, seen.append, "tick", times=2)
    scheduler.call_at(2.0, seen.append, "two")
    scheduler.run_until(2.0)
    assert seen == ["tick", "two", "tick"]


def test_a_call_that_raises_ends_the_run_at_its_time() -> None:
    scheduler, seen = Scheduler(), []
    failed = scheduler.call_at(1.0, lambda: 1 // 0)
    scheduler.call_at(2.0, seen.append, "two")
    with pytest.raises(ZeroDivisionError):
        scheduler.run_until(5.0)
    assert scheduler.now == 1.0
    assert failed.state == "done"
    assert scheduler.run_until(5.0) == 1
    assert seen == ["two"]


def test_a_repeated_call_that_raises_goes_on() -> None:
    scheduler = Scheduler()
    handle = scheduler.call_every(1.0, lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        scheduler.run_until(3.0)
    assert handle.state == "waiting"
    assert scheduler.next_time() == 2.0


def test_runs_do_not_nest() -> None:
    scheduler = Scheduler()
    scheduler.call_at(1.0, scheduler.run_until, 2.0)
    with pytest.raises(RuntimeError):
        scheduler.run_until(3.0)
    assert scheduler.run_until(4.0) == 0


def test_run_all_ends() -> None:
    scheduler, seen = Scheduler(), []
    scheduler.call_every(1.0, seen.append, "a", times=3)
    scheduler.call_at(7.0, seen.append, "b")
    assert scheduler.run_all() == 4
    assert scheduler.now == 7.0
    scheduler.call_every(1.0, list)
    with pytest.raises(RuntimeError):
        scheduler.run_all(limit=5)
    assert scheduler.now == 12.0


def test_run_all_may_use_its_limit() -> None:
    scheduler = Scheduler()
    scheduler.call_every(1.0, list, times=3)
    assert scheduler.run_all(limit=3) == 3


def test_arguments_are_checked() -> None:
    scheduler = Scheduler(5.0)
    with pytest.raises(ValueError):
        scheduler.call_later(-1.0, list)
    with pytest.raises(ValueError):
        scheduler.call_every(0, list)
    with pytest.raises(ValueError):
        scheduler.call_every(1.0, list, times=0)
    with pytest.raises(ValueError):
        scheduler.run_until(4.0)
    assert scheduler.run_until(5.0) == 0
    assert scheduler.call_at(5.0, list).time == 5.0
