"""Which attributes and keys decide how values read, by their names, and which values of them read alike, as one text."""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    _Names = list[Any] | dict[str, Any] | str


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
SCHEMA_COPIES = (
    b"org.apache.spark.sql.parquet.row.metadata",
    b"parquet.avro.schema",
    b"avro.schema",
    b"iceberg.schema",
    b"parquet.proto.descriptor",
    b"thrift.descriptor",
)
"""Keys of the footer of Parquet that shards lack if their schema is another one than that of the first input."""
_MOST_NUMBERS = 1 << 16
_MOST_LEVELS = 64


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
    try:
        return json.dumps(_simplify(value), sort_keys=True, ensure_ascii=False)
    except RecursionError:
        return '"nested too deep"'


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
    import xxhash  # few attributes are large

    text = array.astype(str) if array.dtype.kind not in "OSU" else array
    return xxhash.xxh3_64_hexdigest(
        json.dumps(_simplify(text.ravel().tolist())).encode("utf-8", "surrogatepass")
    )


def is_same(name: str, ours: str | None, theirs: str | None) -> bool:
    """Tell whether two values read alike; None is that of an input that has none."""
    if ours == theirs:
        return True
    plain = _plain(name)
    texts = {_SYNONYMS.get((plain, text or ""), text or _DEFAULTS.get(plain)) for text in (ours, theirs)}
    return len(texts) == 1 or (None not in texts and len({_read_number(text) for text in texts}) == 1)


def _read_number(text: str | None) -> float | str | None:
    """Return the number that a text is, with or without quotes; another text as it is."""
    with suppress(ValueError, TypeError):
        return float((text or "").strip('"'))
    return text


def compare_lists(name: str, ours: str, theirs: str) -> int | None:
    """Return 0 for the same names, -1 or 1 if one list is the beginning of the other and shorter; None if they contradict.

    >>> lists = (('["a"]', '["a", "b"]'), ('"a,b"', '["a", "b"]'), ('["a"]', '["b"]'))
    >>> tuple(compare_lists("classes", *two) for two in lists)
    (-1, 0, None)
    """
    readings = [_list_readings(name, json.loads(text)) for text in (ours, theirs)]
    orders = (_compare(left, right) for left in readings[0] for right in readings[1])
    return next((order for order in orders if order is not None), None)


def _compare(left: _Names, right: _Names) -> int | None:
    if isinstance(left, dict) and isinstance(right, dict):
        agree = all(left[name] == right[name] for name in left.keys() & right.keys())
        agree = agree and (left.keys() <= right.keys() or left.keys() >= right.keys())
    elif isinstance(left, dict) or isinstance(right, dict):
        return None
    else:
        shorter = min(len(left), len(right))
        agree = left[:shorter] == right[:shorter]
    return (len(left) > len(right)) - (len(left) < len(right)) if agree else None


def _list_readings(name: str, value: Any) -> list[_Names]:
    """Return names as a list, or numbers by name as a dictionary; text may be a list in several ways."""
    if not isinstance(value, str):
        return [value if isinstance(value, list | dict) else [value]]
    if _plain(name).startswith("plenum"):
        return [value]  # each behind its length
    if value[:1] in ("[", "{"):
        with suppress(ValueError, RecursionError):
            return _list_readings("", json.loads(value))
    if _plain(name).startswith("flag"):
        return [value.split()]
    return [[part.strip() for part in re.split(r"[,;|\n\t]", value.strip())], [value]]


def is_counted(name: str) -> bool:
    return weigh(name) is not Weight.NONE


def flatten(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the values in JSON objects, each with the names that lead to it; what has a weight of its own as a whole."""
    inner = _name_parts(value) if len(path) < _MOST_LEVELS else None
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
