"""The two passes: scatter, and gather into shards."""
