"""Record batches to Parquet shards."""
