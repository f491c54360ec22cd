"""Outputs on disks of this machine: a work folder, and renames at the commit."""
