"""`dataclass` as in the standard library, where frozen classes share methods.

Before Python 3.13 that compiles six methods for each of them, a fifth of a small run. This leaves one: `__init__`. May go
with Python 3.12.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING or sys.version_info >= (3, 13):
    from dataclasses import dataclass as dataclass
else:
    import dataclasses
    from functools import partial

    def dataclass(cls=None, *, frozen=False, slots=False, **given):
        """Return a class with what `dataclasses.dataclass` gives it; see there."""
        if cls is None:
            return partial(dataclass, frozen=frozen, slots=slots, **given)
        if not (frozen and slots):
            return dataclasses.dataclass(cls, frozen=frozen, slots=slots, **given)
        cls.__setattr__, cls.__delattr__ = _set_once, _refuse_to_delete
        if given.get("eq", True):
            cls.__eq__, cls.__hash__ = _equals, _hash
        if given.get("repr", True):
            cls.__repr__ = _show
        return dataclasses.dataclass(cls, slots=True, eq=False, repr=False)

    def _set_once(self, name, value):
        if hasattr(self, name):  # a slot is empty until `__init__` fills it
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def _refuse_to_delete(_, name):
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def _list_values(self):
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self) if field.compare)

    def _equals(self, other):
        return (
            _list_values(self) == _list_values(other) if other.__class__ is self.__class__ else NotImplemented
        )

    def _hash(self):
        return hash(_list_values(self))

    def _show(self):
        shown = (
            f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr
        )
        return f"{self.__class__.__qualname__}({', '.join(shown)})"
