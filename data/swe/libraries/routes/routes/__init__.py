"""Directed graphs."""

from routes.graph import Graph
from routes.search import NoRoute, distances, shortest
from routes.structure import CycleFound, components, order, reachable

__all__ = ["CycleFound", "Graph", "NoRoute", "components", "distances", "order", "reachable", "shortest"]
