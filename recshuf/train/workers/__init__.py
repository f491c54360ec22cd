"""Worker processes: what they send to the process that trains, and where they begin."""
