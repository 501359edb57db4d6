import pytest
from handoff import BoundedQueue, Pool


def test_first_in_first_out() -> None:
    queue = BoundedQueue(3)
    queue.put("a")
    queue.put("b")
    assert queue.get() == "a"
    assert queue.get() == "b"


def test_size_is_checked() -> None:
    with pytest.raises(ValueError):
        BoundedQueue(0)


def test_length() -> None:
    queue = BoundedQueue(3)
    queue.put("a")
    assert len(queue) == 1


def test_pool() -> None:
    with Pool(2) as pool:
        assert pool.submit(pow, 2, 10).result() == 1024


def test_map() -> None:
    with Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
