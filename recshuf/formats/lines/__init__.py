"""Files of lines, the base of text, JSONL and CSV."""

MARK = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8. It stays at the top of a file, with the header."""
