"""What a graph is made of."""

import heapq

from routes.graph import Graph, Node


class CycleFound(ValueError):
    """`cycle` has the nodes of one, the first repeated at the end."""

    def __init__(self, cycle: list[Node]) -> None:
        super().__init__(" -> ".join(map(str, cycle)))
        self.cycle = cycle


def order(graph: Graph) -> list[Node]:
    """All nodes, each before those it leads to; the earliest free node is always next. Raises CycleFound."""
    rank = {node: index for index, node in enumerate(graph.nodes())}
    waits_for = dict.fromkeys(rank, 0)
    for _, end, _ in graph.edges():
        waits_for[end] += 1
    free = [(rank[node], node) for node, count in waits_for.items() if count == 0]
    heapq.heapify(free)
    found: list[Node] = []
    while free:
        _, node = heapq.heappop(free)
        found.append(node)
        for target in graph.leads_to(node):
            waits_for[target] -= 1
            if waits_for[target] == 0:
                heapq.heappush(free, (rank[target], target))
    if len(found) < len(rank):
        raise CycleFound(_cycle(graph, set(rank) - set(found)))
    return found


def reachable(graph: Graph, start: Node) -> set[Node]:
    """The nodes that can be reached from a node, itself among them."""
    seen = {start}
    waiting = [start]
    while waiting:
        for target in graph.leads_to(waiting.pop()):
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    return seen


def components(graph: Graph) -> list[list[Node]]:
    """Nodes that are connected, whatever the direction of edges: nodes and groups in the graph's order."""
    back = graph.reversed()
    group_of: dict[Node, int] = {}
    groups: list[list[Node]] = []
    for node in graph.nodes():
        if node not in group_of:
            waiting = [node]
            group_of[node] = len(groups)
            groups.append([])
            while waiting:
                current = waiting.pop()
                for target in [*graph.leads_to(current), *back.leads_to(current)]:
                    if target not in group_of:
                        group_of[target] = group_of[node]
                        waiting.append(target)
        groups[group_of[node]].append(node)
    return groups


def _cycle(graph: Graph, left: set[Node]) -> list[Node]:
    """A cycle among nodes of which each waits for another: go backwards until a node comes again."""
    back = graph.reversed()
    path = [next(node for node in graph.nodes() if node in left)]
    while True:
        previous = next(node for node in back.leads_to(path[-1]) if node in left)
        if previous in path:
            return [previous, *path[path.index(previous) :][::-1]]
        path.append(previous)
