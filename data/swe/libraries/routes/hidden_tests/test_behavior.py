from itertools import pairwise

import pytest
from routes import CycleFound, Graph, NoRoute, components, distances, order, reachable, shortest


class Watched(Graph):
    """A graph that counts how often the edges of a node are looked at."""

    def __init__(self, edges: object = ()) -> None:
        self.looked: dict[object, int] = {}
        super().__init__(edges)  # type: ignore[arg-type]

    def leads_to(self, node: object) -> dict[object, float]:
        self.looked[node] = self.looked.get(node, 0) + 1
        return super().leads_to(node)  # type: ignore[arg-type]


def ladder(rungs: int) -> Watched:
    """Two ways of equal cost between each two neighbors: 2 ** rungs routes."""
    graph = Watched()
    for rung in range(rungs):
        for side in "lr":
            graph.add(rung, (rung, side), 1)
            graph.add((rung, side), rung + 1, 1)
    return graph


def test_edges_have_the_cost_given_last() -> None:
    graph = Graph([("a", "b", 4)])
    graph.add("a", "b", 2)
    assert graph.edges() == [("a", "b", 2)]
    assert graph.cost("a", "b") == 2
    assert len(graph) == 2


def test_directions() -> None:
    graph = Graph([("a", "b", 3)])
    assert graph.leads_to("b") == {}
    graph.add("b", "c", 2, both_ways=True)
    assert graph.leads_to("c") == {"b": 2}
    assert graph.leads_to("b") == {"c": 2}


def test_costs_are_checked() -> None:
    with pytest.raises(ValueError):
        Graph([("a", "b", -1)])
    assert Graph([("a", "b", 0)]).cost("a", "b") == 0
    assert Graph([("a", "b")]).cost("a", "b") == 1


def test_removing() -> None:
    graph = Graph([("a", "b"), ("b", "c"), ("c", "a")])
    graph.remove("a", "b")
    assert graph.nodes() == ["a", "b", "c"]
    assert graph.edges() == [("b", "c", 1), ("c", "a", 1)]
    graph.remove_node("c")
    assert graph.nodes() == ["a", "b"]
    assert graph.edges() == []
    with pytest.raises(KeyError):
        graph.remove("a", "b")
    with pytest.raises(KeyError):
        graph.remove_node("x")


def test_what_is_returned_is_a_copy() -> None:
    graph = Graph([("a", "b")])
    graph.leads_to("a")["c"] = 5
    graph.nodes().append("z")
    assert graph.leads_to("a") == {"b": 1}
    assert "z" not in graph
    turned = graph.reversed()
    turned.add("a", "q")
    assert "q" not in graph


def test_reversed() -> None:
    graph = Graph([("a", "b", 3), ("b", "c", 4)])
    graph.add_node("alone")
    turned = graph.reversed()
    assert turned.nodes() == ["a", "b", "c", "alone"]
    assert turned.edges() == [("b", "a", 3), ("c", "b", 4)]


def test_shortest_to_itself() -> None:
    graph = Graph([("a", "a", 5)])
    assert shortest(graph, "a", "a") == (0, ["a"])


def test_shortest_prefers_low_cost() -> None:
    graph = Graph([("a", "d", 10), ("a", "b", 3), ("b", "c", 3), ("c", "d", 3)])
    assert shortest(graph, "a", "d") == (9, ["a", "b", "c", "d"])


def test_shortest_improves_what_it_found_first() -> None:
    graph = Graph([("a", "b", 5), ("a", "c", 1), ("c", "b", 1), ("b", "d", 1), ("c", "d", 7)])
    assert shortest(graph, "a", "d") == (3, ["a", "c", "b", "d"])


def test_of_equal_costs_fewest_edges() -> None:
    graph = Graph([("a", "b", 1), ("b", "c", 1), ("c", "d", 1), ("a", "d", 3)])
    assert shortest(graph, "a", "d") == (3, ["a", "d"])
    free = Graph([("a", "b", 0), ("b", "c", 0), ("a", "c", 0)])
    assert shortest(free, "a", "c") == (0, ["a", "c"])


def test_unknown_nodes() -> None:
    graph = Graph([("a", "b")])
    with pytest.raises(KeyError):
        shortest(graph, "a", "x")
    with pytest.raises(KeyError):
        shortest(graph, "x", "a")
    with pytest.raises(KeyError):
        reachable(graph, "x")
    with pytest.raises(NoRoute, match="'b' to 'a'"):
        shortest(graph, "b", "a")


def test_nodes_need_no_order() -> None:
    graph = Graph([("a", 1, 2), ("a", None, 2), (1, "z", 1), (None, "z", 1)])
    assert shortest(graph, "a", "z") == (3, ["a", 1, "z"])
    assert distances(graph, "a") == {"a": 0, 1: 2, None: 2, "z": 3}


def test_estimates_lead_to_the_end() -> None:
    graph = Watched()
    for number in range(-20, 20):
        graph.add(number, number + 1, 1, both_ways=True)
    cost, route = shortest(graph, 0, 15, estimate=lambda node: abs(15 - node))
    assert cost == 15
    assert route == list(range(16))
    assert -1 not in graph.looked


def test_no_node_is_expanded_twice() -> None:
    graph = ladder(12)
    cost, route = shortest(graph, 0, 12)
    assert cost == 24
    assert len(route) == 25
    assert max(graph.looked.values()) <= 2
    assert sum(graph.looked.values()) <= 37


def test_distances() -> None:
    graph = Graph([("a", "b", 4), ("a", "c", 1), ("c", "b", 2), ("b", "d", 5)])
    graph.add("x", "a")
    assert distances(graph, "a") == {"a": 0, "c": 1, "b": 3, "d": 8}
    assert distances(graph, "a", most=3) == {"a": 0, "c": 1, "b": 3}
    assert distances(graph, "a", most=0) == {"a": 0}
    assert distances(graph, "d") == {"d": 0}


def test_distances_expand_each_node_once() -> None:
    graph = ladder(10)
    found = distances(graph, 0)
    assert found[10] == 20
    assert max(graph.looked.values()) == 1


def test_order_takes_the_earliest_free_node() -> None:
    graph = Graph()
    for node in ("c", "a", "b", "d"):
        graph.add_node(node)
    graph.add("b", "c")
    graph.add("d", "a")
    assert order(graph) == ["b", "c", "d", "a"]
    assert order(Graph()) == []


def test_order_with_several_reasons() -> None:
    graph = Graph([("a", "d"), ("b", "d"), ("a", "c"), ("c", "d")])
    assert order(graph) == ["a", "b", "c", "d"]


def test_cycles_are_named() -> None:
    graph = Graph([("s", "a"), ("a", "b"), ("b", "c"), ("c", "a"), ("c", "t")])
    with pytest.raises(CycleFound) as caught:
        order(graph)
    cycle = caught.value.cycle
    assert len(cycle) == 4
    assert cycle[0] == cycle[-1]
    assert set(cycle) == {"a", "b", "c"}
    assert [graph.cost(*pair) for pair in pairwise(cycle)] == [1, 1, 1]


def test_cycles_have_no_other_nodes() -> None:
    graph = Graph()
    graph.add_node("t")
    graph.add("a", "b")
    graph.add("b", "a")
    graph.add("b", "s")
    graph.add("s", "t")
    with pytest.raises(CycleFound) as caught:
        order(graph)
    assert sorted(caught.value.cycle[1:]) == ["a", "b"]
    assert caught.value.cycle[0] == caught.value.cycle[-1]


def test_a_loop_is_a_cycle() -> None:
    with pytest.raises(CycleFound, match="a -> a"):
        order(Graph([("a", "a")]))


def test_reachable() -> None:
    graph = Graph([("a", "b"), ("b", "c"), ("c", "b"), ("x", "a")])
    assert reachable(graph, "a") == {"a", "b", "c"}
    assert reachable(graph, "c") == {"b", "c"}


def test_components_ignore_direction() -> None:
    graph = Graph([("a", "b"), ("c", "b"), ("d", "e")])
    graph.add_node("f")
    graph.add("g", "c")
    assert components(graph) == [["a", "b", "c", "g"], ["d", "e"], ["f"]]
    assert components(Graph()) == []
