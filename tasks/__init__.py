"""Prefect tasks: thin. They retry, log and publish; what a stage does is in `crl`."""

from tasks.failures import escape_logs

escape_logs()
