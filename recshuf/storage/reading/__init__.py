"""Inputs are listed, and read from disks, object stores and servers."""
