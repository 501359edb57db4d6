"""Rows of text with a delimiter."""

from delimited.dialect import DelimitedError, Dialect
from delimited.reader import read_records, read_rows
from delimited.sniffer import sniff
from delimited.writer import write_rows

__all__ = ["DelimitedError", "Dialect", "read_records", "read_rows", "sniff", "write_rows"]
