"""A job becomes a plan: its inputs are opened, its formats and its output chosen."""
