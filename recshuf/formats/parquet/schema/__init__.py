"""Parquet schemas: types, the union of all inputs, declared metadata, partitions."""
