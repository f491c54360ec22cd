"""Objects are written to buckets, each in one request or in parts."""
