"""Prefect tasks: thin. They retry, log and publish; what a stage does is in `crl`."""
