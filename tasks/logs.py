"""What tasks and flows log is shown as it is: a control character is its escape, in the UI and on any terminal.

Errors of other packages, and lines that an engine wrote, may quote what models and environments said.
"""

from __future__ import annotations

import logging

from crl.text.unicode import escaped

_LOGGERS = ("prefect.flow_runs", "prefect.task_runs", "prefect.flows")
"""Whatever a run logs is said to one of these."""


class Escaping(logging.Filter):
    """Escapes the message of a record, and its traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass the record on, changed where anything in it is unseen."""
        told = record.getMessage()
        if escaped(told) != told:
            record.msg, record.args = escaped(told), ()
        if record.exc_info:
            record.exc_text = escaped(record.exc_text or logging.Formatter().formatException(record.exc_info))
        return True


def escape_logs() -> None:
    """Have everything escaped that runs log in this process; again is the same as once."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(each, Escaping) for each in logger.filters):
            logger.addFilter(Escaping())
