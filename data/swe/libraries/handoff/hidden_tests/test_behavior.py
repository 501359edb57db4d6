import threading
from collections.abc import Callable

import pytest
from handoff import BoundedQueue, Cancelled, Closed, Future, Pool


def waiting_thread(condition: threading.Condition, call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """A thread that makes a call, once it waits for the condition; what the call returned or raised is in the list."""
    waits, seen = threading.Event(), []
    wait = condition.wait

    def watched(timeout: float | None = None) -> bool:
        waits.set()
        return wait(timeout)

    def target() -> None:
        try:
            seen.append(call())
        except Exception as error:
            seen.append(type(error).__name__)
        waits.set()

    condition.wait = watched  # type: ignore[method-assign]
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    waits.wait(20)
    with condition:  # it has let go of the lock: it waits, or is over
        return thread, seen


def ended(thread: threading.Thread) -> bool:
    thread.join(timeout=4)
    return not thread.is_alive()


def test_none_is_an_item() -> None:
    queue = BoundedQueue(2)
    queue.put(None)
    assert len(queue) == 1
    assert queue.get(timeout=0) is None
    assert len(queue) == 0


def test_full_queue_times_out() -> None:
    queue = BoundedQueue(2)
    queue.put("a", timeout=0)
    queue.put("b", timeout=0)
    with pytest.raises(TimeoutError):
        queue.put("c", timeout=0)
    assert len(queue) == 2
    assert queue.get() == "a"
    queue.put("c", timeout=0)
    assert queue.drain() == ["b", "c"]


def test_empty_queue_times_out() -> None:
    queue = BoundedQueue(1)
    with pytest.raises(TimeoutError):
        queue.get(timeout=0)
    with pytest.raises(TimeoutError):
        queue.get(timeout=0.001)


def test_closed_queue_gives_what_is_left() -> None:
    queue = BoundedQueue(3)
    queue.put("a")
    queue.put("b")
    queue.close()
    assert queue.closed is True
    with pytest.raises(Closed):
        queue.put("c")
    assert queue.get() == "a"
    assert queue.get() == "b"
    with pytest.raises(Closed):
        queue.get()
    queue.close()
    assert queue.closed is True


def test_closed_full_queue_refuses_at_once() -> None:
    queue = BoundedQueue(1)
    queue.put("a")
    queue.close()
    with pytest.raises(Closed):
        queue.put("b", timeout=0)
    assert queue.drain() == ["a"]


def test_drain() -> None:
    queue = BoundedQueue(2)
    assert queue.drain() == []
    queue.put(1)
    queue.put(2)
    assert queue.drain() == [1, 2]
    assert len(queue) == 0
    queue.put(3, timeout=0)
    assert queue.get(timeout=0) == 3


def test_a_getter_is_woken_by_an_item() -> None:
    queue = BoundedQueue(1)
    thread, seen = waiting_thread(queue._not_empty, queue.get)
    queue.put("a")
    assert ended(thread)
    assert seen == ["a"]


def test_a_putter_is_woken_by_room() -> None:
    queue = BoundedQueue(1)
    queue.put("a")
    thread, seen = waiting_thread(queue._not_full, lambda: queue.put("b"))
    assert queue.get() == "a"
    assert ended(thread)
    assert seen == [None]
    assert queue.drain() == ["b"]


def test_a_putter_is_woken_by_draining() -> None:
    queue = BoundedQueue(1)
    queue.put("a")
    thread, _ = waiting_thread(queue._not_full, lambda: queue.put("b"))
    assert queue.drain() == ["a"]
    assert ended(thread)
    assert queue.drain() == ["b"]


def test_closing_wakes_getters() -> None:
    queue = BoundedQueue(1)
    first, seen = waiting_thread(queue._not_empty, queue.get)
    second, others = waiting_thread(queue._not_empty, queue.get)
    queue.close()
    assert ended(first)
    assert ended(second)
    assert seen == ["Closed"]
    assert others == ["Closed"]


def test_closing_wakes_putters() -> None:
    queue = BoundedQueue(1)
    queue.put("a")
    thread, seen = waiting_thread(queue._not_full, lambda: queue.put("b"))
    queue.close()
    assert ended(thread)
    assert seen == ["Closed"]
    assert queue.drain() == ["a"]


def test_a_woken_getter_looks_again() -> None:
    queue = BoundedQueue(1)
    thread, seen = waiting_thread(queue._not_empty, queue.get)
    again = threading.Event()
    wait = queue._not_empty.wait

    def watched(timeout: float | None = None) -> bool:
        again.set()
        return wait(timeout)

    queue._not_empty.wait = watched  # type: ignore[method-assign]
    with queue._not_empty:
        queue._not_empty.notify_all()
    while thread.is_alive() and not again.is_set():
        thread.join(timeout=0.01)
    queue.put("a")
    assert ended(thread)
    assert seen == ["a"]


def test_jobs_that_raise() -> None:
    with Pool(1) as pool:
        failed = pool.submit(int, "x")
        with pytest.raises(ValueError):
            failed.result()
        assert failed.state == "failed"
        assert pool.submit(int, "7").result() == 7


def test_results_in_order() -> None:
    gate = threading.Event()

    def job(number: int) -> int:
        if number == 0:
            gate.wait(20)
        else:
            gate.set()
        return number * number

    with Pool(2) as pool:
        assert pool.map(job, [0, 1, 2, 3]) == [0, 1, 4, 9]
        assert pool.map(job, []) == []


def test_leaving_the_block_waits_for_all_jobs() -> None:
    done: list[int] = []
    with Pool(1) as pool:
        futures = [pool.submit(done.append, number) for number in range(20)]
    assert done == list(range(20))
    assert {future.state for future in futures} == {"done"}


def test_a_closed_pool_takes_no_jobs() -> None:
    pool = Pool(1)
    pool.close()
    with pytest.raises(Closed):
        pool.submit(int)


def test_leaving_the_block_by_an_exception_cancels_what_has_not_begun() -> None:
    begun, gate = threading.Event(), threading.Event()
    futures: list[Future] = []

    def job() -> None:
        begun.set()
        gate.wait(5)

    with pytest.raises(KeyError), Pool(1) as pool:
        futures.append(pool.submit(job))
        futures.append(pool.submit(int))
        futures[1].on_end(lambda future: gate.set())
        begun.wait(20)
        raise KeyError
    assert [future.state for future in futures] == ["done", "cancelled"]


def test_cancelling() -> None:
    future = Future()
    assert future.cancel() is True
    assert future.cancel() is True
    assert future.state == "cancelled"
    with pytest.raises(Cancelled):
        future.result(timeout=0)
    future.run(int, ())
    assert future.state == "cancelled"


def test_what_has_begun_is_not_cancelled() -> None:
    future, seen = Future(), []
    future.run(lambda: seen.append(future.cancel()), ())
    assert seen == [False]
    assert future.state == "done"
    assert future.cancel() is False


def test_result_waits_for_so_long() -> None:
    future = Future()
    assert future.over is False
    with pytest.raises(TimeoutError):
        future.result(timeout=0)
    future.run(str, (5,))
    assert future.over is True
    assert future.result(timeout=0) == "5"
    assert future.result() == "5"


def test_a_job_runs_once() -> None:
    future, calls = Future(), []
    future.run(calls.append, (1,))
    future.run(calls.append, (2,))
    assert calls == [1]
    assert future.result() is None


def test_callbacks() -> None:
    future, seen = Future(), []
    future.on_end(lambda each: seen.append(("first", each.state)))
    future.on_end(lambda each: 1 // 0)
    future.on_end(lambda each: seen.append(("second", each.result())))
    assert seen == []
    future.run(int, ("3",))
    assert seen == [("first", "done"), ("second", 3)]
    future.on_end(lambda each: seen.append("late"))
    assert seen[2:] == ["late"]
    failed = Future()
    failed.on_end(lambda each: seen.append(each.state))
    failed.run(int, ("x",))
    assert seen[3:] == ["failed"]


def test_callbacks_may_ask_for_more() -> None:
    future, seen = Future(), []
    future.on_end(lambda each: each.on_end(lambda other: seen.append(other.result())))
    future.run(abs, (-2,))
    assert seen == [2]


def test_submitting_waits_for_room() -> None:
    begun, gate = threading.Event(), threading.Event()

    def job() -> None:
        begun.set()
        gate.wait(20)

    pool = Pool(1, waiting=1)
    pool.submit(job)
    begun.wait(20)
    pool.submit(int)
    thread, seen = waiting_thread(pool._jobs._not_full, lambda: pool.submit(int).result())
    before = list(seen)
    gate.set()
    thread.join(20)
    pool.close()
    assert before == []
    assert seen == [0]


def test_workers_are_checked() -> None:
    with pytest.raises(ValueError):
        Pool(0)
    with pytest.raises(ValueError):
        Pool(1, waiting=0)
