"""Threads read the batches of inputs, in parts that are planned."""
