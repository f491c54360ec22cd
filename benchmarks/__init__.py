"""Speed and memory on generated data."""
