"""The operating system: paths, page cache, locks, atomic renames, memory, threads."""
