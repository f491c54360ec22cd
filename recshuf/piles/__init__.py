"""The pile store: records grouped by key range, in memory and on disk."""
