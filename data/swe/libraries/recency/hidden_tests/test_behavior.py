import threading

import pytest
from recency import Cache, Stats


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_get_counts_as_use() -> None:
    cache = Cache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert cache.get("b") is None
    assert cache.keys() == ["a", "c"]


def test_put_of_a_known_key_counts_as_use_and_evicts_nothing() -> None:
    cache = Cache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.put("a", 10)
    assert cache.keys() == ["b", "a"]
    assert cache.get("a") == 10
    assert cache.stats == Stats(hits=1, misses=0, evictions=0)


def test_peek_changes_nothing() -> None:
    cache = Cache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.peek("a") == 1
    assert cache.peek("z", "none") == "none"
    assert cache.stats == Stats(0, 0, 0)
    assert cache.keys() == ["a", "b"]


def test_contains_is_no_use() -> None:
    cache = Cache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert "a" in cache
    assert "c" not in cache
    cache.put("c", 3)
    assert cache.keys() == ["b", "c"]


def test_stats_count_each_event() -> None:
    cache = Cache(1)
    assert cache.get("a") is None
    cache.put("a", 1)
    assert cache.get("a") == 1
    cache.put("b", 2)
    assert cache.stats == Stats(hits=1, misses=1, evictions=1)


def test_stats_are_a_copy() -> None:
    cache = Cache(1)
    before = cache.stats
    cache.get("a")
    assert before == Stats(0, 0, 0)
    assert cache.stats.misses == 1


def test_none_is_a_value() -> None:
    cache = Cache(2)
    cache.put("a", None)
    assert cache.get("a", "default") is None
    assert "a" in cache
    assert cache.stats == Stats(hits=1, misses=0, evictions=0)


def test_a_loaded_none_is_not_loaded_again() -> None:
    cache, calls = Cache(2), []
    cache.get_or_load("a", calls.append)
    cache.get_or_load("a", calls.append)
    assert calls == ["a"]


def test_expires_exactly_at_its_time() -> None:
    clock = Clock()
    cache = Cache(2, lifetime=10.0, clock=clock)
    cache.put("a", 1)
    clock.now = 109.5
    assert cache.get("a") == 1
    clock.now = 110.0
    assert cache.get("a") is None
    assert "a" not in cache
    assert len(cache) == 0


def test_reading_does_not_prolong() -> None:
    clock = Clock()
    cache = Cache(2, lifetime=10.0, clock=clock)
    cache.put("a", 1)
    clock.now = 106.0
    assert cache.get("a") == 1
    clock.now = 111.0
    assert cache.get("a") is None


def test_putting_again_prolongs() -> None:
    clock = Clock()
    cache = Cache(2, lifetime=10.0, clock=clock)
    cache.put("a", 1)
    clock.now = 106.0
    cache.put("a", 2)
    clock.now = 111.0
    assert cache.get("a") == 2


def test_lifetime_of_one_entry() -> None:
    clock = Clock()
    cache = Cache(3, lifetime=10.0, clock=clock)
    cache.put("a", 1, lifetime=2.0)
    cache.put("b", 2)
    clock.now = 103.0
    assert cache.keys() == ["b"]


def test_expired_entries_make_room_first() -> None:
    clock = Clock()
    cache = Cache(2, clock=clock)
    cache.put("old", 1)
    cache.put("short", 2, lifetime=1.0)
    clock.now = 102.0
    cache.put("new", 3)
    assert cache.keys() == ["old", "new"]
    assert cache.stats.evictions == 0


def test_discard_says_whether_it_was_there() -> None:
    clock = Clock()
    cache = Cache(2, lifetime=5.0, clock=clock)
    cache.put("a", 1)
    assert cache.discard("a") is True
    assert cache.discard("a") is False
    cache.put("b", 2)
    clock.now = 106.0
    assert cache.discard("b") is False


def test_resize_keeps_the_entries_used_last() -> None:
    cache = Cache(4)
    for key in "abcd":
        cache.put(key, key.upper())
    assert cache.get("a") == "A"
    cache.resize(2)
    assert cache.keys() == ["d", "a"]
    assert cache.stats.evictions == 2
    cache.put("e", "E")
    assert cache.keys() == ["a", "e"]
    with pytest.raises(ValueError):
        cache.resize(0)


def test_clear_resets_the_counts() -> None:
    cache = Cache(2)
    cache.put("a", 1)
    cache.get("a")
    cache.get("b")
    cache.clear()
    assert cache.keys() == []
    assert cache.stats == Stats(0, 0, 0)


def test_lifetime_is_checked() -> None:
    with pytest.raises(ValueError):
        Cache(1, lifetime=0)
    with pytest.raises(ValueError):
        Cache(1, lifetime=-1.0)
    assert Cache(1).capacity == 1


def test_a_failed_load_stores_nothing_and_may_be_tried_again() -> None:
    cache = Cache(2)
    with pytest.raises(ZeroDivisionError):
        cache.get_or_load(0, lambda key: 1 // key)
    assert cache.keys() == []
    assert cache._loading == {}
    assert cache.get_or_load(0, lambda key: "found") == "found"


def test_load_may_use_the_cache() -> None:
    cache = Cache(3)
    assert cache.get_or_load("a", lambda key: cache.get_or_load("b", str.upper) + "!") == "B!"
    assert cache.keys() == ["b", "a"]


def calls_of_two_threads(cache: Cache) -> list[str]:
    """Two threads ask for one key; the load of the first ends only after the second has asked or loads as well."""
    calls: list[str] = []
    both = threading.Semaphore(0)
    asked = cache.get

    def get(key: str, default: object = None) -> object:
        value = asked(key, default)
        both.release()
        return value

    def load(key: str) -> str:
        calls.append(key)
        if len(calls) == 1:
            second.start()
            for _ in range(2):
                both.acquire(timeout=5)
        return key.upper()

    cache.get = get  # type: ignore[method-assign]
    second = threading.Thread(target=cache.get_or_load, args=("a", load))
    first = threading.Thread(target=cache.get_or_load, args=("a", load))
    first.start()
    first.join()
    second.join()
    return calls


def test_two_threads_load_once() -> None:
    calls = calls_of_two_threads(Cache(2))
    assert calls == ["a"]


class Gate:
    """A lock that says when a thread has to wait for it."""

    def __init__(self, lock: object) -> None:
        self.lock = lock
        self.waited_for = threading.Event()

    def __enter__(self) -> None:
        if not self.lock.acquire(blocking=False):  # type: ignore[attr-defined]
            self.waited_for.set()
            self.lock.acquire()  # type: ignore[attr-defined]

    def __exit__(self, *raised: object) -> None:
        self.lock.release()  # type: ignore[attr-defined]


def meanwhile(thread: threading.Thread, gate: Gate) -> None:
    """Start a thread and let it run until it ends or waits at the gate."""
    thread.start()
    for _ in range(500):
        thread.join(timeout=0.01)
        if gate.waited_for.is_set() or not thread.is_alive():
            break


def test_loading_one_key_does_not_block_others() -> None:
    cache, seen = Cache(2), []
    gate = Gate(cache._lock)
    cache._lock = gate  # type: ignore[assignment]
    cache.put("ready", 1)

    def load(key: str) -> list[int]:
        meanwhile(threading.Thread(target=lambda: seen.append(cache.get("ready"))), gate)
        return list(seen)

    assert cache.get_or_load("slow", load) == [1]
