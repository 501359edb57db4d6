"""Reading a run: SQL views over its Parquet files, the round table, the lineage of an experience.

Everything here is derived and read-only; the only file it ever writes is `catalog.duckdb`, which holds views.
"""
