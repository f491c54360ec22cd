"""Values as text, for all formats of text."""
