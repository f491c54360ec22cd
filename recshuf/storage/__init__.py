"""Local disk and object stores: list, stat, read at, commit."""
