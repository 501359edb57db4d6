"""Data checks: one Great Expectations suite per row type, validated in the stage that writes it, before it commits."""

from crl.checks.stage import SuiteResult, check_tables

__all__ = ["SuiteResult", "check_tables"]
