"""Filters of HDF5 chunks."""
