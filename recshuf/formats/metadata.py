"""What files say beside their records, attributes and keys: which of it decides how values read, and what several inputs give.

Every shard gets the metadata of one input. So what decides the meaning of values must be the same in all of them: a factor, a
unit, a list of the names of labels. Equal are values that read alike: `describe` brings them to one text.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recshuf.errors import InputError
from recshuf.interfaces import Metadata, MetadataKey

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping


class Weight(IntEnum):
    """What a difference between two inputs means, by the name of what differs."""

    NONE = 0
    """It is natural: a date of creation, a title, a count."""
    LITTLE = 1
    """It says something of the records, and not how they read."""
    LABELS = 2
    """Values are numbers of names in a list, which may only be longer in one input than in another."""
    MEANING = 3
    """The same value means something else."""


# Names without case, blanks and punctuation.
_MEANING = re.compile(
    r"scalefactor|addoffset|units?|calendar|fillvalue|missingvalue|valid(min|max|range)|unsigned"
    r"|(quant(ization)?)?(zeropoints?|scales?|bits)|quant(ization)?(range|mode|method|scheme|params)?|dequant\w*"
    r"|slope|intercept|offset|gain|conversion|nodata(value)?|nan(value|rep)"
    r"|(sampl(e|ing)|frame)(rate|freq|frequency|interval|period)(hz|khz|s|ms)?|rate|sfreq|sr|fs|fps|dt|hoplength"
    r"|(time|reference|base)(units?|zone|origin|date|time|epoch)|tz|epoch|(unit|time)?resolution"
    r"|arrowextension(name|metadata)|arrowtype|(logical)?dtype|logicaltype|encodingtype|(text|char(acter)?)?encoding|charset|byteorder|endian(ness)?"
    r"|ordered|orderedcategories|matlabclass|colou?r(space|order|model|mode)|channelorder|interlacemode|imagesubclass|positive"
    r"|crs(wkt)?|spatialref|epsg(code)?|edges|orientation|gridmappingname"
    r"|valuesblock\d+(kind|dtype)|nonindexaxes|field\d+name|(class|label|category)(name)?\d+"
    r"|orgapachesparklegacy\w+|writer(timezone|dateproleptic|zoneconversionlegacy)"
)
_LABELS = re.compile(
    r"(class|label|category|target|tag|flag|token|phoneme|speaker|species|channel|ch|band|column|feature|keypoint|joint)names?"
    r"|names|classes|classlabels?|labels|labelclasses|categories|levels|vals|vocab(ulary)?|alphabet|codebook|legend"
    r"|flag(values|masks|meanings)|enum(values|names)?|plenumvalues2?"
    r"|(label|class|category|index|idx|id|int|str|name|token|code)(map(ping)?|dict|(to|2)(id|idx|index|int|label|class|name|str|token|code)s?)"
    r"|(class|label|category)(list|indices|encoding)"
)
_THINGS = "rows?|records?|samples?|examples?|items?|entries|events?|elements?|images?|frames?|sequences?|documents?|tokens?|lines?|points?|observations?"
_NONE = re.compile(
    r"history|(long)?title|name|(ncproperties|netcdf4dimid)"
    r"|(date|time|timestamp|datetime)?(of)?(created|creation|modified|modification|written|write|saved|updated|generated|generation|export(ed)?)"
    r"(at|on)?(date|time|timestamp|datetime)?(utc)?|last(modified|updated?|saved)(at|on)?|[cm]time|datetimecreated"
    rf"|(n|no|num|number(of)?|total|count(of)?)({_THINGS})|({_THINGS})(count|total|number)|nrows|rows|records|counts?|total|size|length"
)
_DEFAULTS = {
    "scalefactor": "1",
    "addoffset": "0",
    "calendar": '"standard"',
    "unsigned": '"false"',
    "fillvalue": "NaN",
    "missingvalue": "NaN",
}
"""What readers take where an attribute is absent."""
_SYNONYMS = {("calendar", '"gregorian"'): '"standard"'}
_MOST_NUMBERS = 1 << 16
_MOST_SHOWN = 8
_SHOWN_LETTERS = 100


@lru_cache(1 << 12)
def weigh(name: str) -> Weight:
    """Return the weight of what has a name.

    >>> weigh("_FillValue").name, weigh("id2label").name, weigh("date_created").name, weigh("comment").name
    ('MEANING', 'LABELS', 'NONE', 'LITTLE')
    """
    plain = _plain(name)
    for pattern, weight in ((_MEANING, Weight.MEANING), (_LABELS, Weight.LABELS), (_NONE, Weight.NONE)):
        if pattern.fullmatch(plain):
            return weight
    return Weight.LITTLE


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()


def describe(value: Any) -> str:
    """Return the text of a value, the same for values that read alike.

    >>> describe(np.float32(0.01)) == describe(np.array([0.01], ">f8")), describe(b"K") == describe("K ")
    (True, True)
    >>> describe(float("nan")), describe([1, 2.0]), describe(np.array(["a", "b"], object))
    ('NaN', '[1, 2]', '["a", "b"]')
    """
    return json.dumps(_simplify(value), sort_keys=True, ensure_ascii=False)


def _simplify(value: Any) -> Any:
    """Return a value made of JSON: an array of one element as this, numbers without their width, text without padding."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "OSU" and value.size == 1:
        value = value.item()
    if isinstance(value, np.ndarray | np.generic):
        return _simplify_array(np.asarray(value))
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if isinstance(value, str):
        return value.rstrip("\0 ")
    if isinstance(value, float):
        return int(value) if math.isfinite(value) and value.is_integer() else value
    if isinstance(value, dict):
        return {str(key): _simplify(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_simplify(inner) for inner in value]
    return value if value is None or isinstance(value, int) else str(value)


def _simplify_array(array: np.ndarray[Any, Any]) -> Any:
    if array.size > _MOST_NUMBERS:
        return f"{array.shape} with hash {hash_values(array)}"
    if array.dtype.names:
        parts = [_simplify_array(array[name]) for name in array.dtype.names]
        return dict(zip(array.dtype.names, parts, strict=True))
    if array.dtype.kind == "f" and array.dtype.itemsize < 8:
        array = array.astype(str).astype(
            np.float64
        )  # as few digits as tell it apart: 0.01 is 0.01 in any width
    elif array.dtype.kind in "cVMm":
        array = array.astype(str) if array.dtype.kind != "V" else np.array([array.tobytes().hex()])
    elif array.dtype.kind == "b":
        array = array.astype(np.int8)
    values = array.tolist()
    return _simplify(array.item() if array.size == 1 else values)


def hash_values(array: np.ndarray[Any, Any]) -> str:
    """Return a hash of the values of an array."""
    import xxhash  # few attributes are large

    text = array.astype(str) if array.dtype.kind not in "OSU" else array
    return xxhash.xxh3_64_hexdigest(
        json.dumps(_simplify(text.ravel().tolist())).encode("utf-8", "surrogatepass")
    )


@dataclass(slots=True)
class _File:
    """Inputs that say the same."""

    index: int
    """Of the first of them."""
    name: str
    values: Mapping[MetadataKey, str]
    columns: Collection[str] | None
    origin: Any
    count: int = 1


class _Held(NamedTuple):
    """A value of all inputs so far."""

    text: str
    file: _File


class _Refused(NamedTuple):
    """Values of an input, and of another one before it, that contradict each other."""

    key: MetadataKey
    theirs: str | None
    ours: str | None
    other: str


@dataclass(slots=True)
class _Difference:
    """A value that differs in some inputs, and is the first one in the output."""

    ours: str | None
    theirs: str | None
    name: str
    """Of the first input that differs."""
    count: int


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
        """
        held = self._files.setdefault(
            (frozenset(values.items()), columns), _File(index, name, values, columns, origin, 0)
        )
        held.count += count
        if index < held.index:
            held.index, held.name, held.origin = index, name, origin

    def merge(self) -> tuple[Metadata, dict[MetadataKey, Any]]:
        """Return what the output says, and where that is found which the first input does not say.

        Raises
        ------
        InputError
            When two inputs differ in what decides the meaning of values.
        """
        if not self._files:
            return Metadata({}), {}
        first, *others = sorted(self._files.values(), key=lambda file: file.index)
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
        if is_same(key, text, theirs):
            return None
        weight = weigh(key.subject)
        if weight is Weight.LABELS and ours is not None and theirs is not None:
            order = compare_lists(key, ours.text, theirs)
            if order is not None:
                if order < 0:
                    held[key] = _Held(theirs, file)
                return None
        if weight >= Weight.LABELS and not self.is_lenient:
            return _Refused(key, theirs, text, first.name if ours is None else ours.file.name)
        known = self._differences.setdefault(key, _Difference(text, theirs, file.name, 0))
        known.count += file.count
        return None

    def note(self, key: MetadataKey, ours: str, theirs: str, name: str) -> None:
        """Note a difference that others have found in an input."""
        known = self._differences.setdefault(key, _Difference(ours, theirs, name, 0))
        known.count += 1

    def _note(self, first: str) -> str:
        """Return a sentence about what differs, empty if nothing does."""
        parts = []
        for key, one in list(self._differences.items())[:_MOST_SHOWN]:
            ours, theirs = _show_pair(one.ours, one.theirs)
            more = f" and {one.count - 1} more" if one.count > 1 else ""
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
    """Return a sentence about how inputs, the first called `name`, differ from those of a store; empty if they do not.

    Raises
    ------
    InputError
        When they differ in what decides the meaning of values, or have labels that the store lacks, unless that is taken.
    """
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


def is_same(key: MetadataKey, ours: str | None, theirs: str | None) -> bool:
    """Tell whether two values read alike; None is that of an input that has none."""
    if ours == theirs:
        return True
    plain = _plain(key.subject)
    texts = {_SYNONYMS.get((plain, text or ""), text or _DEFAULTS.get(plain)) for text in (ours, theirs)}
    return len(texts) == 1


def compare_lists(key: MetadataKey, ours: str, theirs: str) -> int | None:
    """Return 0 for the same names, -1 or 1 if one list is the beginning of the other and shorter; None if they contradict.

    >>> key = MetadataKey("dataset", ("y",), "classes")
    >>> compare_lists(key, '["a"]', '["a", "b"]'), compare_lists(key, '"a,b"', '["a", "b"]'), compare_lists(key, '["a"]', '["b"]')
    (-1, 0, None)
    """
    left, right = (_list_names(key.subject, json.loads(text)) for text in (ours, theirs))
    if isinstance(left, dict) and isinstance(right, dict):
        agree = all(left[name] == right[name] for name in left.keys() & right.keys())
        is_part = left.keys() <= right.keys() or left.keys() >= right.keys()
        return (len(left) > len(right)) - (len(left) < len(right)) if agree and is_part else None
    if isinstance(left, dict) or isinstance(right, dict):
        return None
    shorter = min(len(left), len(right))
    if left[:shorter] != right[:shorter] or not shorter:
        return None
    return (len(left) > len(right)) - (len(left) < len(right))


def _list_names(name: str, value: Any) -> list[Any] | dict[str, Any] | str:
    """Return names as a list, or numbers by name as a dictionary, however they are written."""
    if not isinstance(value, str):
        return value if isinstance(value, list | dict) else [value]
    if _plain(name).startswith("plenum"):
        return value  # each behind its length
    if value[:1] in ("[", "{"):
        try:
            parsed = json.loads(value)
        except ValueError:
            pass
        else:
            return parsed if isinstance(parsed, list | dict) else [value]
    if _plain(name).startswith("flag"):
        return value.split()
    return [part.strip() for part in re.split(r"[,;|\n\t]", value.strip())]


def compare_written(expected: Metadata, found: Metadata) -> Iterator[str]:
    """Yield how an output differs from what its inputs give, in what decides the meaning of values, and in what it has beside that."""
    for key in dict.fromkeys((*expected.values, *found.values)):
        ours, theirs = expected.values.get(key), found.values.get(key)
        if is_same(key, ours, theirs):
            continue
        if weigh(key.subject) >= Weight.LABELS or None not in (ours, theirs):
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
    shown = text[start : start + _SHOWN_LETTERS]
    return f"{'...' if start else ''}{shown}{'...' if start + len(shown) < len(text) else ''}"


def is_counted(name: str) -> bool:
    """Tell whether what has a name is compared at all."""
    return weigh(name) is not Weight.NONE


def flatten(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the values in JSON objects, each with the names that lead to it; what has a weight of its own as a whole."""
    inner = _name_parts(value)
    if inner is None or weigh(path[-1]) is not Weight.LITTLE:
        yield path, value
        return
    for key, part in inner.items():
        yield from flatten(part, (*path, key))


def find_inside(value: Any, path: Iterable[str]) -> Any:
    """Return the part of a value of JSON to which names lead; None if there is none."""
    for part in path:
        value = (_name_parts(value) or {}).get(part)
    return value


def _name_parts(value: Any) -> dict[str, Any] | None:
    """Return the parts of an object, or of a list of objects by their ``name`` or number; None if it has none."""
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        names = {str(one["name"]) for one in value if "name" in one}
        numbers = map(str, range(len(value)))
        keys = (str(one["name"]) for one in value) if len(names) == len(value) else numbers
        return dict(zip(keys, value, strict=True))
    return value if isinstance(value, dict) else None
