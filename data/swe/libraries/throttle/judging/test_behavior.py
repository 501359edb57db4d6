import threading

import pytest
from throttle import PerKey, SlidingWindow, TokenBucket


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class HeldClock(Clock):
    """A clock that lets another thread try to get in while it is read: it is read inside of the lock."""

    def __init__(self, other: "list[threading.Thread]") -> None:
        super().__init__()
        self.other = other

    def __call__(self) -> float:
        if self.other:
            thread = self.other.pop()
            thread.start()
            thread.join(timeout=0.3)
        return self.now


def test_bucket_never_overflows() -> None:
    clock = Clock()
    bucket = TokenBucket(2.0, 5, clock)
    clock.now = 100.0
    assert bucket.tokens == 5
    bucket.try_acquire(3)
    bucket.give_back(10)
    assert bucket.tokens == 5


def test_bucket_fractions_add_up() -> None:
    clock = Clock()
    bucket = TokenBucket(0.5, 1, clock)
    assert bucket.try_acquire() is True
    clock.now = 1.0
    assert bucket.try_acquire() is False
    clock.now = 2.0
    assert bucket.try_acquire() is True
    assert bucket.try_acquire() is False


def test_refused_takes_nothing() -> None:
    clock = Clock()
    bucket = TokenBucket(1.0, 4, clock)
    assert bucket.try_acquire(3) is True
    assert bucket.try_acquire(2) is False
    assert bucket.tokens == 1.0
    assert bucket.try_acquire(1) is True


def test_retry_after_of_a_bucket() -> None:
    clock = Clock()
    bucket = TokenBucket(2.0, 4, clock)
    assert bucket.retry_after(4) == 0.0
    bucket.try_acquire(3)
    assert bucket.retry_after(1) == 0.0
    assert bucket.retry_after(4) == 1.5
    clock.now = 1.0
    assert bucket.retry_after(4) == 0.5
    assert bucket.tokens == 3.0


def test_bucket_counts_are_checked() -> None:
    bucket = TokenBucket(1.0, 3, Clock())
    with pytest.raises(ValueError):
        bucket.try_acquire(4)
    with pytest.raises(ValueError):
        bucket.try_acquire(0)
    with pytest.raises(ValueError):
        bucket.retry_after(4)
    with pytest.raises(ValueError):
        TokenBucket(1.0, 0)
    assert bucket.try_acquire(3) is True


def test_a_clock_that_goes_back_adds_nothing() -> None:
    clock = Clock()
    clock.now = 10.0
    bucket = TokenBucket(1.0, 5, clock)
    bucket.try_acquire(5)
    clock.now = 4.0
    assert bucket.tokens == 0.0
    clock.now = 6.0
    assert bucket.tokens == 2.0


def test_acquire_sleeps_as_long_as_needed() -> None:
    clock, naps = Clock(), []
    bucket = TokenBucket(0.5, 2, clock)

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        clock.now += seconds

    assert bucket.acquire(2, sleep) == 0.0
    assert bucket.acquire(1, sleep) == 2.0
    assert naps == [2.0]
    assert bucket.tokens == 0.0


def test_acquire_goes_on_if_others_were_faster() -> None:
    clock, naps = Clock(), []
    bucket = TokenBucket(1.0, 2, clock)
    bucket.try_acquire(2)

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        clock.now += seconds
        if len(naps) == 1:
            bucket.try_acquire(1)

    assert bucket.acquire(2, sleep) == 3.0
    assert naps == [2.0, 1.0]


def test_window_slides() -> None:
    clock = Clock()
    window = SlidingWindow(2, 10.0, clock)
    assert window.try_acquire() is True
    clock.now = 6.0
    assert window.try_acquire() is True
    clock.now = 9.0
    assert window.try_acquire() is False
    clock.now = 10.0
    assert window.try_acquire() is True
    assert window.try_acquire() is False
    clock.now = 16.0
    assert window.remaining() == 1


def test_window_takes_all_or_none() -> None:
    clock = Clock()
    window = SlidingWindow(3, 10.0, clock)
    assert window.try_acquire(2) is True
    assert window.try_acquire(2) is False
    assert window.remaining() == 1
    assert window.try_acquire(1) is True
    assert window.remaining() == 0
    with pytest.raises(ValueError):
        window.try_acquire(4)
    with pytest.raises(ValueError):
        window.try_acquire(0)


def test_retry_after_of_a_window() -> None:
    clock = Clock()
    window = SlidingWindow(3, 10.0, clock)
    assert window.retry_after(3) == 0.0
    window.try_acquire()
    clock.now = 2.0
    window.try_acquire()
    clock.now = 5.0
    window.try_acquire()
    assert window.retry_after() == 5.0
    assert window.retry_after(2) == 7.0
    assert window.retry_after(3) == 10.0
    clock.now = 11.0
    assert window.retry_after() == 0.0
    assert window.retry_after(2) == 1.0
    with pytest.raises(ValueError):
        window.retry_after(4)


def test_window_settings_are_checked() -> None:
    with pytest.raises(ValueError):
        SlidingWindow(1, 0)
    assert SlidingWindow(1, 0.5).remaining() == 1


def test_idle_keys_are_forgotten() -> None:
    clock = Clock()
    users = PerKey(lambda: SlidingWindow(1, 100.0, clock), idle=10.0, clock=clock)
    assert users.try_acquire("ada") is True
    clock.now = 5.0
    assert users.try_acquire("bob") is True
    clock.now = 9.0
    assert users.try_acquire("ada") is False
    clock.now = 15.0
    assert users.keys() == ["ada"]
    assert users.try_acquire("bob") is True
    assert len(users) == 2


def test_without_idle_nothing_is_forgotten() -> None:
    clock = Clock()
    users = PerKey(lambda: TokenBucket(1.0, 1, clock), clock=clock)
    users.limiter("ada")
    clock.now = 1e9
    assert users.keys() == ["ada"]


def test_per_key_retry_and_count() -> None:
    clock = Clock()
    users = PerKey(lambda: TokenBucket(1.0, 4, clock), clock=clock)
    assert users.try_acquire("ada", 3) is True
    assert users.retry_after("ada", 4) == 3.0
    assert users.retry_after("ada") == 0.0
    assert users.retry_after("bob", 4) == 0.0


def test_one_limiter_per_key() -> None:
    users = PerKey(lambda: TokenBucket(1.0, 4, Clock()))
    first = users.limiter("ada")
    assert users.limiter("ada") is first
    assert users.limiter("bob") is not first
    assert len(users) == 2


def test_two_threads_take_the_last_token_once() -> None:
    others: list[threading.Thread] = []
    taken: list[bool] = []
    bucket = TokenBucket(1.0, 1, HeldClock(others))
    others.append(threading.Thread(target=lambda: taken.append(bucket.try_acquire())))
    second = others[0]
    first = bucket.try_acquire()
    second.join()
    assert first is True
    assert taken == [False]


def test_two_threads_share_a_window() -> None:
    others: list[threading.Thread] = []
    taken: list[bool] = []
    window = SlidingWindow(1, 60.0, HeldClock(others))
    others.append(threading.Thread(target=lambda: taken.append(window.try_acquire())))
    second = others[0]
    first = window.try_acquire()
    second.join()
    assert first is True
    assert taken == [False]


def test_two_threads_make_one_limiter() -> None:
    others: list[threading.Thread] = []
    found: list[object] = []

    def make() -> object:
        if others:
            thread = others.pop()
            thread.start()
            thread.join(timeout=0.3)
        return object()

    users = PerKey(make)
    others.append(threading.Thread(target=lambda: found.append(users.limiter("ada"))))
    second = others[0]
    mine = users.limiter("ada")
    second.join()
    assert found == [mine]
