"""What files say beside their records, and what the output says: several inputs united, a store and what is appended, an output.

Every shard gets the metadata of one input. So what decides the meaning of values must be the same in all of them: a factor, a
unit, a list of the names of labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from recshuf.errors import InputError
from recshuf.formats.meaning import SCHEMA_COPIES, Weight, compare_lists, is_same, weigh
from recshuf.interfaces import Metadata, MetadataKey

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping


_MOST_SHOWN = 8
_SHOWN_LETTERS = 100
_COPIES = {(key.decode(),) for key in SCHEMA_COPIES}


@dataclass(slots=True)
class _File:
    index: int
    name: str
    values: Mapping[MetadataKey, str]
    columns: Collection[str] | None
    origin: Any
    is_empty: bool
    count: int = 0


class _Held(NamedTuple):
    text: str
    file: _File


class _Refused(NamedTuple):
    """Values of an input, and of another one before it, that contradict each other."""

    key: MetadataKey
    theirs: str | None
    ours: str | None
    other: str


class _Difference(NamedTuple):
    """A value that differs in some inputs, and is the first one in the output."""

    ours: str | None
    theirs: str | None
    name: str
    """Of the first input that differs."""
    file_count: int = 0


class MetadataUnion:
    """The metadata of all inputs: those of the first, where they agree in what decides the meaning of values.

    Parameters
    ----------
    is_lenient
        Whether those of the first are taken where others mean something else.
    """

    def __init__(self, *, is_lenient: bool) -> None:
        self.is_lenient = is_lenient
        self._files: dict[Any, _File] = {}
        self._differences: dict[MetadataKey, _Difference] = {}

    def add(
        self,
        index: int,
        name: str,
        values: Mapping[MetadataKey, str],
        *,
        columns: frozenset[str] | None = None,
        origin: Any = None,
        count: int = 1,
        is_empty: bool = False,
    ) -> None:
        """Add what an input says; the order of calls does not matter.

        Parameters
        ----------
        columns
            Columns that it has; it has no say in others. None for all.
        origin
            Where what it says can be found, for `merge`.
        count
            Inputs that say the same, of which it is the first.
        is_empty
            Whether it has no records: then it has a say in columns that no other input has, but for its first.
        """
        held = self._files.setdefault(
            (frozenset(values.items()), columns, is_empty),
            _File(index, name, values, columns, origin, is_empty),
        )
        held.count += count
        if index < held.index:
            held.index, held.name, held.origin = index, name, origin

    def merge(self) -> tuple[Metadata, dict[MetadataKey, Any]]:
        """Return what the output says, and where that is found which the first input does not say."""
        if not self._files:
            return Metadata({}), {}
        first, *others = sorted(self._files.values(), key=lambda file: (file.is_empty, file.index))
        held = {key: _Held(text, first) for key, text in first.values.items()}
        known = None if first.columns is None else {*first.columns}
        for file in others:
            refused: list[_Refused] = []
            for key in dict.fromkeys((*held, *file.values)):
                column = key.column
                if column is not None and file.columns is not None and column not in file.columns:
                    continue
                if column is not None and known is not None and column not in known:
                    held.setdefault(key, _Held(file.values[key], file))
                    continue
                if file.is_empty:
                    continue
                refused += filter(None, [self._compare(key, held, file, first)])
            if refused:
                raise _refuse(file.name, refused, first.name)
            if known is not None:
                known |= {*(file.columns or ())}
        taken = {key: value.file.origin for key, value in held.items() if value.file is not first}
        return Metadata({key: value.text for key, value in held.items()}, self._note(first.name)), taken

    def _compare(
        self, key: MetadataKey, held: dict[MetadataKey, _Held], file: _File, first: _File
    ) -> _Refused | None:
        """Compare a value of a file with that of all before, which may be replaced; return it if it is refused."""
        ours, theirs = held.get(key), file.values.get(key)
        text = None if ours is None else ours.text
        if is_same(key.subject, text, theirs):
            return None
        weight = weigh(key.subject)
        if weight is Weight.LABELS and ours is not None and theirs is not None:
            order = compare_lists(key.subject, ours.text, theirs)
            if order is not None:
                if order < 0:
                    held[key] = _Held(theirs, file)
                return None
        if weight >= Weight.LABELS and not self.is_lenient:
            return _Refused(key, theirs, text, first.name if ours is None else ours.file.name)
        self.note(key, text, theirs, file.name, file.count)
        return None

    def note(self, key: MetadataKey, ours: str | None, theirs: str | None, name: str, count: int = 1) -> None:
        known = self._differences.get(key) or _Difference(ours, theirs, name)
        self._differences[key] = known._replace(file_count=known.file_count + count)

    def _note(self, first: str) -> str:
        """Return a sentence about what differs, empty if nothing does."""
        parts = []
        for key, one in list(self._differences.items())[:_MOST_SHOWN]:
            ours, theirs = _show_pair(one.ours, one.theirs)
            more = f" and {one.file_count - 1} more" if one.file_count > 1 else ""
            parts.append(f"{key.place}{key.item} is {ours}, in {one.name}{more} {theirs}")
        if not parts:
            return ""
        rest = len(self._differences) - len(parts)
        more = f"; and {rest} more" if rest else ""
        return f"metadata of the files differ, and those of {first} are taken: {'; '.join(parts)}{more}"


def _refuse(name: str, refused: list[_Refused], taken: str) -> InputError:
    parts = []
    for key, theirs, ours, other in refused[:_MOST_SHOWN]:
        here, there = _show_pair(theirs, ours)
        parts.append(f"{key.place}{key.item} is {here} here and {there} in {other}")
    first = refused[0].key
    place = f"{first.place}{first.item}".rstrip(",")
    problem = "; ".join(parts).removeprefix(f"{first.place}{first.item} ")
    return InputError(
        name,
        f"{problem}; so equal values mean different things",
        place=place,
        remedy=f"make them agree, shuffle the files apart, or give --first-metadata to take what {taken} says",
    )


def check_appended(held: Metadata, store: str, found: Metadata, name: str, *, is_lenient: bool) -> str:
    """Return a sentence about how inputs, the first called `name`, differ from those of a store; empty if they do not."""
    union = MetadataUnion(is_lenient=is_lenient)
    union.add(0, store, held.values)
    union.add(1, name, found.values)
    merged, taken = union.merge()
    if taken and not is_lenient:
        key = next(iter(taken))
        ours, theirs = _show_pair(held.values[key], found.values[key])
        raise InputError(
            name,
            f"is {theirs} here, more than {ours} in {store}, which never changes",
            place=f"{key.place}{key.item}".rstrip(","),
            remedy="begin a new store, or give --first-metadata to leave the list as it is",
        )
    return merged.differences


def compare_meanings(first: Metadata, other: Metadata, columns: Collection[str]) -> Iterator[str]:
    """Yield what decides the meaning of values in some columns and differs; a list of labels may be longer in one."""
    for key in dict.fromkeys((*first.values, *other.values)):
        ours, theirs = first.values.get(key), other.values.get(key)
        if weigh(key.subject) < Weight.LABELS or is_same(key.subject, ours, theirs):
            continue
        is_longer = ours and theirs and compare_lists(key.subject, ours, theirs) is not None
        if not is_longer and (key.column is None or key.column in columns):
            here, there = _show_pair(ours, theirs)
            yield f"{key.place}{key.item} is {here} and {there}"


def find_other_copies(held: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return the names of `Source.repeated` that differ; lists of labels are left to the metadata."""
    names = (name for name, checksum in held.items() if found.get(name, checksum) != checksum)
    return sorted(name for name in names if weigh(name.rpartition("/")[2]) is not Weight.LABELS)


def name_copy(format_name: str, name: str) -> str:
    """Return the name of one of `Source.repeated` in words of its format."""
    return f"{'array' if format_name == 'npz' else 'dataset'} {name!r}"


def compare_written(expected: Metadata, found: Metadata) -> Iterator[str]:
    """Yield how an output differs from what its inputs give, in what decides the meaning of values, and in what it has beside that."""
    for key in dict.fromkeys((*expected.values, *found.values)):
        ours, theirs = expected.values.get(key), found.values.get(key)
        if is_same(key.subject, ours, theirs):
            continue
        is_left_out = theirs is None and key.path[:1] in _COPIES
        if not is_left_out and (weigh(key.subject) >= Weight.LABELS or None not in (ours, theirs)):
            here, there = _show_pair(ours, theirs)
            yield f"{key.place}{key.item} is {here} by the inputs and {there} in the output"
    if found.differences:
        yield f"output: {found.differences}"


def _show_pair(left: str | None, right: str | None) -> tuple[str, str]:
    """Return two values for a message, cut to where they differ."""
    start = 0
    if left is not None and right is not None and max(len(left), len(right)) > _SHOWN_LETTERS:
        same = next((at for at, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), 0)
        start = max(0, same - _SHOWN_LETTERS // 2)
    return _show(left, start), _show(right, start)


def _show(text: str | None, start: int) -> str:
    if text is None:
        return "absent"
    text = text.encode("utf-8", "backslashreplace").decode()
    shown = text[start : start + _SHOWN_LETTERS]
    return f"{'...' if start else ''}{shown}{'...' if start + len(shown) < len(text) else ''}"
