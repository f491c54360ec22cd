"""What a Parquet file says of itself: footer, page headers, schema elements."""
