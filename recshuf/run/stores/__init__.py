"""Kept pile stores: made of inputs, changed, and gathered."""
