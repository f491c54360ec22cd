"""The conformance tests of formats, which need pytest: a subclass of `FormatSuite` tests a format.

docs/plugin.md shows one.
"""

import pytest

pytest.register_assert_rewrite("recshuf.testing.suite", "recshuf.testing.runs")

from recshuf.testing.suite import FormatSuite  # noqa: E402 - pytest rewrites its assertions

__all__ = ["FormatSuite"]
