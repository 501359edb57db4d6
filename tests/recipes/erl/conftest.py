"""The loss of ERL is checked on the model that the paper's equations are checked on."""

from tests.paper.conftest import model

__all__ = ["model"]
