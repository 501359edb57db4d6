"""Plain text of a given width."""

from wrapping.blocks import dedent_block, shorten
from wrapping.layout import columns, fill_justified
from wrapping.lines import wrap

__all__ = ["columns", "dedent_block", "fill_justified", "shorten", "wrap"]
