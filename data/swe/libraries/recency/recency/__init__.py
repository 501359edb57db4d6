"""A cache that forgets what was used longest ago."""

from recency.cache import Cache
from recency.stats import Stats

__all__ = ["Cache", "Stats"]
