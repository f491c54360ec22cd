"""Training from piles: the order of every epoch, and loaders of its batches."""
