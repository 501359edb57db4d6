"""An agent that runs itself: a program of the user's, started per episode, which calls the actor as a service."""

from crl.worlds.harness.environment import HarnessConfig

__all__ = ["HarnessConfig"]
