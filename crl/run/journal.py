"""The journal of a run: an append-only diary of attempts and stages (`journal.jsonl`).

For people and for `crl status`. It holds clock times and is part of no digest; the record is complete without it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crl.errors import CrlError
from crl.run.jsonlines import JsonLines

JOURNAL = "journal.jsonl"


class Journal(JsonLines):
    """Events, each with `time` (UTC, ISO 8601), `event`, `token` and, where they apply, `round`, `stage`, `error`.

    The lease writes `attempt_started`, `attempt_ended` and `attempt_taken_over`; whoever runs stages writes
    `stage_started`, `stage_committed`, `stage_failed` and `stage_skipped`; retention `pruned`, redo `set_aside`, and
    without a lease, as token 0, the catalog `sealed`. A fork begins with `forked`, and with what was said of the stages
    that it was given (`inherited`).
    """

    def __init__(self, run_path: Path) -> None:
        super().__init__(Path(run_path) / JOURNAL)

    def record(
        self,
        event: str,
        *,
        token: int,
        round_number: int | None = None,
        stage: str | None = None,
        error: BaseException | dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Append one event. An error may be an exception or the payload of one."""
        payload: dict[str, Any] = {"time": datetime.now(UTC).isoformat(), "event": event, "token": token}
        if round_number is not None:
            payload["round"] = round_number
        if stage is not None:
            payload["stage"] = stage
        if isinstance(error, CrlError):
            payload["error"] = error.payload()
        elif isinstance(error, BaseException):
            payload["error"] = {"type": type(error).__name__, "found": str(error)}
        elif error is not None:
            payload["error"] = error
        self.append({**payload, **more})
