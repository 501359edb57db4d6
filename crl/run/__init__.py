"""The run directory: the system of record. Only this room writes files of the record."""
