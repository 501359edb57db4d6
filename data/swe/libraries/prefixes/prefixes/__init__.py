"""Words by their prefixes."""

from prefixes.tree import PrefixMap

__all__ = ["PrefixMap"]
