"""Engines: what runs independent tasks, here or elsewhere."""
