"""Files of lines, the base of text, JSONL and CSV."""
