"""Metadata of Parquet files: footer, page headers, schema elements."""
