"""The conformance suite, which `recshuf.testing` has."""

from recshuf.testing import FormatSuite

__all__ = ["FormatSuite"]
