import pytest
from recency import Cache, Stats


def test_stores_and_returns() -> None:
    cache = Cache(2)
    cache.put("a", 1)
    assert cache.get("a") == 1
    assert "a" in cache
    assert len(cache) == 1


def test_default_for_a_missing_key() -> None:
    cache = Cache(2)
    assert cache.get("a") is None
    assert cache.get("a", 7) == 7


def test_oldest_is_removed() -> None:
    cache = Cache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.put("c", 3)
    assert cache.keys() == ["b", "c"]


def test_load_is_stored() -> None:
    cache = Cache(2)
    assert cache.get_or_load("a", str.upper) == "A"
    assert cache.get("a") == "A"


def test_capacity_is_checked() -> None:
    with pytest.raises(ValueError):
        Cache(0)


def test_hit_rate() -> None:
    assert Stats().hit_rate == 0.0
    assert Stats(hits=3, misses=1).hit_rate == 0.75
