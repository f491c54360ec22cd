"""Whether an order is uniformly random."""
