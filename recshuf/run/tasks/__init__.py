"""A run as tasks, which other processes and machines work on."""
