import pytest
from throttle import PerKey, SlidingWindow, TokenBucket


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_bucket_begins_full() -> None:
    bucket = TokenBucket(1.0, 2, Clock())
    assert bucket.try_acquire()
    assert bucket.try_acquire()
    assert not bucket.try_acquire()


def test_bucket_refills() -> None:
    clock = Clock()
    bucket = TokenBucket(2.0, 4, clock)
    bucket.try_acquire(4)
    clock.now = 1.0
    assert bucket.tokens == 2.0


def test_window() -> None:
    window = SlidingWindow(2, 10.0, Clock())
    assert window.try_acquire()
    assert window.remaining() == 1


def test_keys_are_separate() -> None:
    users = PerKey(lambda: TokenBucket(1.0, 1, Clock()))
    assert users.try_acquire("ada")
    assert users.try_acquire("bob")
    assert not users.try_acquire("ada")


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError):
        TokenBucket(0, 1)
    with pytest.raises(ValueError):
        SlidingWindow(0, 1.0)
