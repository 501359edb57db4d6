"""Prefect tasks: thin. They log and publish; what a stage does, and its retries, are in `crl`."""

from tasks.failures import escape_logs

escape_logs()
