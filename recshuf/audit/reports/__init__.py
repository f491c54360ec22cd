"""Results of an audit as text, pictures and HTML."""
