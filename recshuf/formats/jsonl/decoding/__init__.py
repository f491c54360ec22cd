"""JSON lines to tables: inferred types, parsing, bad lines."""
