"""How an episode ended, in words: they follow what the last action did."""

from __future__ import annotations

from collections.abc import Mapping

from crl.protocols import StopReason

ENDINGS: Mapping[StopReason, str] = {
    StopReason.success: "The goal is reached.",
    StopReason.failure: "The game is over.",
    StopReason.turn_limit: "No turns are left.",
}
