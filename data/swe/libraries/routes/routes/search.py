"""Routes of least cost."""

import heapq
from collections.abc import Callable

from routes.graph import Graph, Node


class NoRoute(LookupError):
    """The end cannot be reached."""


def shortest(
    graph: Graph, start: Node, end: Node, estimate: Callable[[Node], float] | None = None
) -> tuple[float, list[Node]]:
    """Cost and nodes of a route of least cost; of several, one with the fewest edges.

    `estimate` is a lower bound of the cost from a node to the end that falls by no more than an edge costs along it:
    the search then looks in the direction of the end first. Raises KeyError for unknown nodes, and NoRoute.
    """
    graph.leads_to(end)
    guess = estimate or (lambda node: 0)
    entered, count = {start: (0.0, 0)}, 0
    before: dict[Node, Node] = {}
    done: set[Node] = set()
    heap = [(guess(start), 0, count, start)]
    while heap:
        _, steps, _, node = heapq.heappop(heap)
        if node in done:
            continue
        if node == end:
            return entered[end][0], _traced(before, start, end)
        done.add(node)
        for target, cost in graph.leads_to(node).items():
            reached = (entered[node][0] + cost, steps + 1)
            if target not in done and (target not in entered or reached < entered[target]):
                entered[target] = reached
                before[target] = node
                count += 1
                heapq.heappush(heap, (reached[0] + guess(target), steps + 1, count, target))
    raise NoRoute(f"no route from {start!r} to {end!r}")


def distances(graph: Graph, start: Node, most: float | None = None) -> dict[Node, float]:
    """The cost to every node that can be reached, for at most `most` if it is given; the start itself has 0."""
    found: dict[Node, float] = {}
    heap: list[tuple[float, int, Node]] = [(0, 0, start)]
    count = 0
    while heap:
        so_far, _, node = heapq.heappop(heap)
        if node in found:
            continue
        found[node] = so_far
        for target, cost in graph.leads_to(node).items():
            if target not in found and (most is None or so_far + cost <= most):
                count += 1
                heapq.heappush(heap, (so_far + cost, count, target))
    return found


def _traced(before: dict[Node, Node], start: Node, end: Node) -> list[Node]:
    route = [end]
    while route[-1] != start:
        route.append(before[route[-1]])
    return route[::-1]
