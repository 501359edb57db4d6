"""A bounded queue between threads, and a pool of threads."""

from handoff.future import Cancelled, Future
from handoff.pool import Pool
from handoff.queue import BoundedQueue, Closed

__all__ = ["BoundedQueue", "Cancelled", "Closed", "Future", "Pool"]
