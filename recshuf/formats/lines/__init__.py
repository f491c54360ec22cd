"""Lines: what text and JSONL have in common."""
