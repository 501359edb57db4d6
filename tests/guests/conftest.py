"""Fixtures of other folders that tests of several guests use."""

from tests.paper.conftest import model
from tests.unit.lab.warm.conftest import chat, method

__all__ = ["chat", "method", "model"]
