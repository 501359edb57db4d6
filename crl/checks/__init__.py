"""Data checks: one Great Expectations suite a record type, run inside the stage that writes it, before it commits."""

from crl.checks.suites import SuiteResult, check_tables, suite_names

__all__ = ["SuiteResult", "check_tables", "suite_names"]
