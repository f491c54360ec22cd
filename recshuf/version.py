"""The version of recshuf."""

__version__ = "0.1.0"
