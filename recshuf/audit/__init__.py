"""Checks of existing files."""
