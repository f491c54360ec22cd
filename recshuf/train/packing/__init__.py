"""Sequences of one length for language models, cut from documents."""
