"""The shares of the parts of a split, as users give them. Must not import NumPy: commands start with it."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from recshuf.errors import UsageError
from recshuf.system.paths import PLAIN_NAME_RULE, is_plain_name

_TOLERANCE = Fraction(1, 10**9)
_MOST = 255


def parse_shares(text: str) -> dict[str, str]:
    """Return the shares in an option's value, as text.

    >>> parse_shares("train=0.75,val=1/4")
    {'train': '0.75', 'val': '1/4'}
    """
    shares: dict[str, str] = {}
    for part in text.split(","):
        name, equals, share = part.partition("=")
        if not equals or name in shares:
            raise UsageError(
                f"--split {text}: {part!r} is no share of a new name; give NAME=SHARE,NAME=SHARE, such as "
                "train=0.99,val=0.01"
            )
        shares[name] = share
    if not 1 < len(shares) <= _MOST:
        raise UsageError(
            f"--split: the number of shares is {len(shares)}; give 2 to {_MOST}, such as train=0.99,val=0.01"
        )
    return shares


def check_shares(shares: Any) -> dict[str, Fraction]:
    """Return the shares of a split by name, whose sum is 1."""
    if not isinstance(shares, Mapping) or not 1 < len(shares) <= _MOST:
        raise UsageError(
            f"split: {shares!r} is no split; give 2 to {_MOST} shares by name, such as {{'train': 0.99, 'val': 0.01}}"
        )
    for name in shares:
        if not isinstance(name, str) or not is_plain_name(name):
            raise UsageError(f"split: name {name!r}: {PLAIN_NAME_RULE}")
    exact = {name: _read_share(name, share) for name, share in shares.items()}
    if abs(sum(exact.values(), Fraction(-1))) > _TOLERANCE:
        total = float(sum(exact.values()))
        raise UsageError(f"split: the shares add up to {total:.10g}; let them add up to 1")
    return exact


def _read_share(name: str, share: Any) -> Fraction:
    try:
        # A float is what its shortest text says, so that Python and the command mean the same share.
        exact = Fraction(str(share)) if isinstance(share, float | str | Fraction) else Fraction()
    except (ValueError, ZeroDivisionError):
        exact = Fraction()
    if not 0 < exact < 1:
        raise UsageError(f"split: share {share!r} of {name!r}: give a number between 0 and 1")
    return exact
