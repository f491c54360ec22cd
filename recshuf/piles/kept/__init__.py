"""Kept stores: snapshots, sets that programs write, and their upkeep."""
