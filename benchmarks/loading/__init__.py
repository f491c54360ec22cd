"""Loaders for training, each in a module of its own: how it wants its data, and an epoch of shuffled batches.

`write(folder, tables)` writes the rows, and `load(folder)` yields them once. A module imports the library that it is
about when it is called.
"""

BATCH = 256
SEED = 7
