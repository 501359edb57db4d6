import pytest
from routes import CycleFound, Graph, NoRoute, components, order, shortest


def test_shortest() -> None:
    roads = Graph([("a", "b", 4), ("a", "c", 1), ("c", "b", 2)])
    assert shortest(roads, "a", "b") == (3, ["a", "c", "b"])


def test_no_route() -> None:
    with pytest.raises(NoRoute):
        shortest(Graph([("a", "b")]), "b", "a")


def test_order() -> None:
    assert order(Graph([("a", "b"), ("b", "c")])) == ["a", "b", "c"]


def test_cycle() -> None:
    with pytest.raises(CycleFound):
        order(Graph([("a", "b"), ("b", "a")]))


def test_components() -> None:
    assert components(Graph([("a", "b"), ("c", "d")])) == [["a", "b"], ["c", "d"]]
