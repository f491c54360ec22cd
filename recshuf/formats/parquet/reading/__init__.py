"""Parquet row groups to record batches."""
