import threading

import pytest
from throttle import PerKey, SlidingWindow, TokenBucket


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


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


class Tokens(float):
    """A number of tokens that lets another thread in once it was compared, before that is acted on."""

    enter: object = None

    def __lt__(self, other: float) -> bool:
        result = float(self) < other
        self.enter()  # type: ignore[operator]
        return result

    def __ge__(self, other: float) -> bool:
        result = float(self) >= other
        self.enter()  # type: ignore[operator]
        return result


def tokens_of_two() -> list[bool]:
    """One token, and a second thread that asks for it while the first sees that it is there: what the two get."""
    bucket = TokenBucket(1.0, 1, Clock())
    gate = Gate(bucket._lock)
    taken: list[bool] = []
    second = threading.Thread(target=lambda: taken.append(bucket.try_acquire()))
    bucket._lock = gate  # type: ignore[assignment]
    bucket._tokens = Tokens(1.0)
    bucket._tokens.enter = lambda: second.ident or meanwhile(second, gate)
    taken.append(bucket.try_acquire())
    second.join()
    return taken


class Limit(int):
    """A limit that lets another thread in once it was found to be just reached, before that is acted on."""

    enter: object = None

    def __lt__(self, other: int) -> bool:
        result = int(self) < other
        if other == int(self):
            self.enter()  # type: ignore[operator]
        return result


def events_of_two() -> list[bool]:
    """Room for one more event, and a second thread that asks while the first sees that there is room."""
    window = SlidingWindow(2, 60.0, Clock())
    window.try_acquire()
    gate = Gate(window._lock)
    taken: list[bool] = []
    second = threading.Thread(target=lambda: taken.append(window.try_acquire()))
    window._lock = gate  # type: ignore[assignment]
    window.limit = Limit(2)
    window.limit.enter = lambda: second.ident or meanwhile(second, gate)
    taken.append(window.try_acquire())
    second.join()
    return taken


def test_two_threads_take_the_last_token_once() -> None:
    taken = tokens_of_two()
    assert sorted(taken) == [False, True]


def test_two_threads_share_a_window() -> None:
    taken = events_of_two()
    assert sorted(taken) == [False, True]


def two_limiters() -> list[object]:
    """What two threads get that ask for the limiter of one key, the second while the first makes it."""
    found: list[object] = []
    waiting: list[threading.Thread] = []

    def make() -> object:
        if waiting:
            meanwhile(waiting.pop(), gate)
        return object()

    users = PerKey(make)
    gate = Gate(users._lock)
    users._lock = gate  # type: ignore[assignment]
    second = threading.Thread(target=lambda: found.append(users.limiter("ada")))
    waiting.append(second)
    found.append(users.limiter("ada"))
    second.join()
    return found


def test_two_threads_make_one_limiter() -> None:
    found = two_limiters()
    assert len(found) == 2
    assert found[0] is found[1]
