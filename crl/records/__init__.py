"""The vocabulary of the system: row types by what they are about, each with its rules, and their schemas (`base.py`).

Protocols between rooms are in `crl/protocols.py`; this package imports nothing else of the project.
"""

from __future__ import annotations

from crl.records.bank import (
    Approval,
    BankChange,
    BankEntry,
    BankEvent,
    BankSnapshot,
    BankText,
    Distillation,
    ImportedEntry,
    Operation,
    Resemblance,
)
from crl.records.base import (
    RECORD_FORMAT,
    OutsideRows,
    Row,
    Rules,
    rows_of,
    rows_with,
    schema_of,
    table_of,
    vectors_of,
    with_added,
    without_defaults,
)
from crl.records.critique import Critique, SuccessRate
from crl.records.judge import Verdict
from crl.records.learning import BufferItem, Credit, EntryScore, EntryUsefulness, Metric, Sample, UseReward, Weights
from crl.records.play import (
    FREE,
    GUIDED,
    QUESTION,
    SUMMARY,
    SYNTHETIC,
    Episode,
    Evaluation,
    Generation,
    Question,
    RawReward,
    Retrieval,
    RetrievalCount,
    StrippedContext,
    Task,
    Turn,
    numbered,
    shown_text,
)
from crl.records.trials import TRIAL, CandidateUtility, Suppression, TextEffect, Trial, TrialResult

ROW_TYPES: tuple[type[Row], ...] = (
    Task, Retrieval, RetrievalCount, Episode, Turn, Generation, Question, StrippedContext, RawReward, Distillation,
    Operation, Resemblance,
    BankEntry, BankChange, BankSnapshot, BankText, BankEvent, ImportedEntry, Approval, Credit, EntryScore, BufferItem,
    Sample, Weights, Metric, Evaluation, Critique, SuccessRate, UseReward, EntryUsefulness,
    Trial, TrialResult, TextEffect, Suppression, CandidateUtility, Verdict,
)  # fmt: skip
ROW_TYPE_BY_TABLE: dict[str, type[Row]] = {row_type.table: row_type for row_type in ROW_TYPES}

__all__ = [
    "FREE",
    "GUIDED",
    "QUESTION",
    "RECORD_FORMAT",
    "ROW_TYPES",
    "ROW_TYPE_BY_TABLE",
    "SUMMARY",
    "SYNTHETIC",
    "TRIAL",
    "Approval",
    "BankChange",
    "BankEntry",
    "BankEvent",
    "BankSnapshot",
    "BankText",
    "BufferItem",
    "CandidateUtility",
    "Credit",
    "Critique",
    "Distillation",
    "EntryScore",
    "EntryUsefulness",
    "Episode",
    "Evaluation",
    "Generation",
    "ImportedEntry",
    "Metric",
    "Operation",
    "OutsideRows",
    "Question",
    "RawReward",
    "Resemblance",
    "Retrieval",
    "RetrievalCount",
    "Row",
    "Rules",
    "Sample",
    "StrippedContext",
    "SuccessRate",
    "Suppression",
    "Task",
    "TextEffect",
    "Trial",
    "TrialResult",
    "Turn",
    "UseReward",
    "Verdict",
    "Weights",
    "numbered",
    "rows_of",
    "rows_with",
    "schema_of",
    "shown_text",
    "table_of",
    "vectors_of",
    "with_added",
    "without_defaults",
]  # fmt: skip
