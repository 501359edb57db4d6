"""Nodes and the edges between them."""

from collections.abc import Hashable, Iterable

Node = Hashable


class Graph:
    """A directed graph. `edges` are (from, to) or (from, to, cost)."""

    def __init__(self, edges: Iterable[tuple] = ()) -> None:
        self._edges: dict[Node, dict[Node, float]] = {}
        for edge in edges:
            self.add(*edge)

    def add_node(self, node: Node) -> None:
        self._edges.setdefault(node, {})

    def add(self, start: Node, end: Node, cost: float = 1, both_ways: bool = False) -> None:
        """Add an edge, and its nodes where they are new. `both_ways` adds the edge back as well."""
        if cost < 0:
            raise ValueError("costs must not be negative")
        self.add_node(start)
        self.add_node(end)
        self._edges[start][end] = cost
        if both_ways:
            self._edges[end][start] = cost

    def remove(self, start: Node, end: Node) -> None:
        """Remove an edge; its nodes stay. Raises KeyError."""
        del self._edges[start][end]

    def remove_node(self, node: Node) -> None:
        """Remove a node and all its edges. Raises KeyError."""
        del self._edges[node]
        for targets in self._edges.values():
            targets.pop(node, None)

    def nodes(self) -> list[Node]:
        return list(self._edges)

    def edges(self) -> list[tuple[Node, Node, float]]:
        return [(start, end, cost) for start, targets in self._edges.items() for end, cost in targets.items()]

    def leads_to(self, node: Node) -> dict[Node, float]:
        """Where a node leads to, with costs. Raises KeyError."""
        return dict(self._edges[node])

    def cost(self, start: Node, end: Node) -> float:
        return self._edges[start][end]

    def reversed(self) -> "Graph":
        """A new graph with the same nodes and all edges turned."""
        turned = Graph()
        for node in self._edges:
            turned.add_node(node)
        for start, end, cost in self.edges():
            turned.add(end, start, cost)
        return turned

    def __contains__(self, node: Node) -> bool:
        return node in self._edges

    def __len__(self) -> int:
        """How many nodes there are."""
        return len(self._edges)
