"""Files of lines, the base of text and JSONL."""
