"""Whether two data sets hold the same records."""
