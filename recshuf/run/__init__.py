"""One shuffle from end to end: resolve, scatter, gather, commit, resume."""
