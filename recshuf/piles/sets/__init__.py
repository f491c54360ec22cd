"""Pile sets: files of regions that describe themselves."""
