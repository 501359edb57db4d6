"""Prefect tasks: thin. They retry, log and publish; what a stage does is in `crl`."""

from tasks.logs import escape_logs

escape_logs()
