"""Marks that several test files share."""

from __future__ import annotations

import pytest

from crl.policies.precision import computes_bfloat16

NEEDS_BFLOAT16 = pytest.mark.skipif(
    not computes_bfloat16(), reason="bfloat16 is computed in float32 here: this CPU has no kernels for it"
)
