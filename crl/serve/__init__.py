"""A trained agent leaves its run: what it is (`source`), the folder that others open (`export`), its card (`card`), its
episodes as training data (`episodes`, from the record by `read_back`), its games before somebody's eyes (`watched`)."""

from __future__ import annotations

from typing import Literal

EpisodeFormat = Literal["messages", "preference"]
"""How episodes are written."""
