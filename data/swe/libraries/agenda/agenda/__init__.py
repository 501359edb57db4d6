"""Calls at given times."""

from agenda.handle import Handle
from agenda.scheduler import Scheduler

__all__ = ["Handle", "Scheduler"]
