"""Limits on how often something may happen."""

from throttle.bucket import TokenBucket
from throttle.keyed import PerKey
from throttle.window import SlidingWindow

__all__ = ["PerKey", "SlidingWindow", "TokenBucket"]
