"""The operating system: paths, page cache, locks, atomic renames, file listing, memory, threads."""
