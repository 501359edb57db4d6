"""Transformers' `generate_batch` (continuous batching over a paged cache): the whole history at every turn."""

from __future__ import annotations

from reread import Paged, main

if __name__ == "__main__":
    main(Paged)
