"""Which files of a folder are inputs, and which must not be mixed: the splits of a data set."""

from __future__ import annotations

import glob
import posixpath
import re
import shlex
from collections import defaultdict
from enum import Enum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

from recshuf.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from recshuf.interfaces import InputFile, NameSuffix


_DIGITS = re.compile(r"(\d+)")
_SPLITS = {
    word: words[0]
    for words in (
        ("train", "training"),
        ("validation", "valid", "val", "dev"),
        ("test", "testing"),
        ("eval", "evaluation"),
    )
    for word in words
}
"""Words in the names of files and folders, and the split of a data set that each stands for."""
_ANY_SPLIT = re.compile("train|val|dev|test", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]+")
_NUMBERED = re.compile(r"(.+)-\d{3,}-of-\d{3,}\b")
"""Name of one of several files of a split, as data sets of Hugging Face have them."""
_MOST_NAMED = 3


class Role(Enum):
    """What a file of a folder is."""

    INPUT = "an input"
    DATA = "none, but it looks like data"
    OTHER = "of another format than the one that was named"
    UNLISTED = "not in the list of files that its folder has"
    NOTHING = "no data"


class Judged(NamedTuple):
    """What the files of a folder are."""

    files: list[tuple[InputFile, Role]]
    splits: dict[str, list[str]]
    """Names of the inputs in each split of a data set, where a file of the folder names splits."""


class NameRules(Protocol):
    """How file names are read, and which of a folder's files are inputs."""

    def split(self, name: str) -> NameSuffix:
        """Return the suffixes of a file name."""

    @property
    def wanted(self) -> str:
        """What the inputs of a folder are, in messages."""

    @property
    def names_format(self) -> bool:
        """Whether a format was named."""

    def judge(self, files: Sequence[InputFile]) -> Judged:
        """Return the role of each file of a folder, by its name; where that leaves it open, by its beginning."""

    def pair(self, files: Sequence[InputFile]) -> list[InputFile]:
        """Return files, those that belong to others as companions of these, which are found beside them if need be."""

    def complete(self, name: str) -> str:
        """Return the path of a companion, given what its name and that of its file begin with, or else the same path."""

    def explain(self, suffix: NameSuffix) -> tuple[str, str] | None:
        """Return what a file with this suffix is, if that is not read, and what to do; None if it may hold records."""


def natural_key(path: str) -> tuple[tuple[str | int, ...], ...]:
    """Return a sort key that puts ``file2`` before ``file10``, folder by folder.

    >>> sorted(["b/1", "a10", "a9", "a/2"], key=natural_key)
    ['a/2', 'a9', 'a10', 'b/1']
    """
    cut = path.rfind("/")
    return (
        (*map(_part_key, path[:cut].split("/")), _part_key(path[cut + 1 :]))
        if cut >= 0
        else (_part_key(path),)
    )


@lru_cache
def _part_key(part: str) -> tuple[str | int, ...]:
    pieces: list[str | int] = [*_DIGITS.split(part)]
    pieces[1::2] = map(int, pieces[1::2])
    return tuple(pieces)


def choose_files(
    folder: str, files: Iterable[InputFile], rules: NameRules, warn: Callable[[str], None]
) -> list[InputFile]:
    """Return those files of a folder that are inputs, in natural order, or in that of a list in the folder.

    Files that look like data and are none, and splits of a data set, are an error; what is of another format than the one
    that was named is left out aloud.
    """
    listed = sorted(files, key=lambda file: natural_key(file.name))
    if not listed:
        raise InputError(folder, "no files in this directory", remedy="check the path")
    sides: dict[Role, list[InputFile]] = {role: [] for role in Role}
    judged = rules.judge(listed)
    for file, role in judged.files:
        sides[role].append(file)
    chosen = sides[Role.INPUT]
    if not chosen:
        raise _refuse_none(folder, sides, rules)
    all_names = [file.name for file in listed]
    names = sorted((file.name for file in chosen), key=natural_key)
    if sides[Role.DATA]:
        pattern = _find_pattern(folder, names, all_names)
        raise InputError(
            folder,
            f"holds data beside the {rules.wanted}, which would be left out: {_name_some(sides[Role.DATA])}",
            remedy=f"choose with a pattern, as {pattern}" if pattern else "name the files one by one",
        )
    if sides[Role.OTHER]:
        warn(
            f"{folder}: passed over {_name_some(sides[Role.OTHER])}, of another format by name; "
            "to read such a file, name it"
        )
    if sides[Role.UNLISTED]:
        warn(
            f"{folder}: passed over {_name_some(sides[Role.UNLISTED])}, which the list of its files does not name"
        )
    places = {name: place for place, name in enumerate(names)}
    splits = {word: [places[name] for name in found] for word, found in judged.splits.items()}
    splits = splits or find_splits([name.removeprefix(folder).lstrip("/") for name in names])
    if splits:
        raise _refuse_splits(folder, splits, names, all_names)
    return chosen


def _refuse_none(folder: str, sides: dict[Role, list[InputFile]], rules: NameRules) -> InputError:
    """Return the error for a folder without inputs, which names first what looks most like data."""
    files = [file for role in Role for file in sides[role]]
    foreign = [(file, explained) for file in files if (explained := rules.explain(file.suffix))]
    if foreign:
        _, (what, remedy) = foreign[0]
        alike = [file for file, explained in foreign if explained[0] == what]
        return InputError(folder, f"holds no {rules.wanted}, but {what}: {_name_some(alike)}", remedy=remedy)
    data = [file.name for file in sides[Role.DATA]]
    pattern = _find_pattern(folder, data, [file.name for file in files]) if data else None
    way = f"name its files, as {pattern}" if pattern else "name the files one by one"
    return InputError(
        folder,
        f"holds no {rules.wanted}, only {_name_some(files)}",
        remedy=f"give another --format, or {way}" if rules.names_format else way,
    )


def _name_some(files: Sequence[InputFile]) -> str:
    more = f" and {len(files) - _MOST_NAMED} more" if len(files) > _MOST_NAMED else ""
    return ", ".join(file.name for file in files[:_MOST_NAMED]) + more


class _Place(NamedTuple):
    split: str
    word: str
    rest: str
    """The other words of that part of the path; empty if it begins with the word."""


def find_splits(names: Sequence[str]) -> dict[str, list[int]]:
    """Return the files of each split of a data set, by their indices; empty unless there are two or more.

    Two files are of two splits if their names tell them at the beginning, or have the same other words. Partitions
    (``split=train``) tell none.

    >>> find_splits(["train-0.csv", "train-1.csv", "dev-0.csv", "more.csv"])
    {'train': [0, 1], 'dev': [2]}
    >>> find_splits(["data/a_train.csv", "data/b_test.csv"]), find_splits(["a_test.csv", "a_train.csv"])
    ({}, {'test': [0], 'train': [1]})
    """
    if not _ANY_SPLIT.search("\n".join(names)):
        return {}
    by_rest: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    words: dict[str, str] = {}
    others = []
    for index, name in enumerate(names):
        place = _find_split(name)
        if place is not None:
            by_rest[place.rest][place.split].append(index)
            words.setdefault(place.split, place.word)
        elif match := _NUMBERED.match(name.rpartition("/")[2]):
            others.append((match[1], index))
    if by_rest.get(""):
        for word, index in others:
            by_rest[""][word].append(index)
    found: dict[str, list[int]] = defaultdict(list)
    for splits in by_rest.values():
        if len(splits) > 1:
            for split, indices in splits.items():
                found[words.get(split, split)] += indices
    return dict(found)


def _find_split(name: str) -> _Place | None:
    for part in name.split("/"):
        words = _WORD.findall(part)
        for place, word in enumerate(words):
            if "=" not in part and (split := _SPLITS.get(word.lower())):
                return _Place(split, word, " ".join(words[:place] + words[place + 1 :]) if place else "")
    return None


def _refuse_splits(
    folder: str, splits: dict[str, list[int]], names: Sequence[str], all_names: Sequence[str]
) -> InputError:
    patterns = [
        _find_folder(folder, [names[at] for at in found], names)
        or _find_pattern(folder, [names[at] for at in found], all_names, word)
        for word, found in splits.items()
    ]
    one = "name the files of one"
    if all(patterns):
        one = f"choose one, as {', '.join(filter(None, patterns[:-1]))} or {patterns[-1]}"
    every = _find_pattern(folder, names, all_names)
    return InputError(
        folder,
        f"holds the splits {tell_splits(splits)} of a data set, and one output would mix them",
        remedy=one + (f"; to mix them, give {every}" if every else ""),
    )


def tell_splits(splits: dict[str, list[int]]) -> str:
    """Return the names of splits, and their numbers of files.

    >>> tell_splits({"train": [0, 1], "dev": [2]})
    'train (2 files) and dev (1 file)'
    """
    *first, last = [
        f"{word} ({len(found)} file{'' if len(found) == 1 else 's'})" for word, found in splits.items()
    ]
    return f"{', '.join(first)} and {last}" if first else last


def _find_folder(folder: str, wanted: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the folder below a folder that holds these of its inputs and no others; None if there is none."""
    root = folder.rstrip("/") + "/"
    top = posixpath.commonpath([posixpath.dirname(name[len(root) :]) for name in wanted])
    is_apart = top and [name for name in names if name.startswith(f"{root}{top}/")] == list(wanted)
    return shlex.quote(f"{root}{top}/") if is_apart else None


def _find_pattern(folder: str, wanted: Sequence[str], names: Sequence[str], word: str = "") -> str | None:
    """Return an input that stands for these files of a folder and no others, as a shell takes it; None if there is none."""
    root = folder.rstrip("/") + "/"
    suffixes = {name.rpartition("/")[2].partition(".")[2] for name in wanted}
    end = f".{suffixes.pop()}" if len(suffixes) == 1 else ""
    stems = [f"{word}*", f"{word}*{end}", f"*{word}*", f"*{word}*{end}"] if word else ["*", f"*{end}"]
    folders = {name[: name.rfind("/") + 1] for name in wanted}
    bases = [glob.escape(next(iter(folders)))] if len(folders) == 1 else [f"{glob.escape(root)}**/"]
    for pattern in [base + stem for base in bases for stem in stems]:
        if [name for name in names if _matches(name, pattern)] == list(wanted):
            return shlex.quote(pattern)
    return None


def _matches(name: str, pattern: str) -> bool:
    """Tell whether a pattern gives a file: by its name, or by that of a folder that it is in, whose files are listed."""
    if "/**/" in pattern:
        base, _, stem = pattern.partition("/**/")
        return fnmatchcase(name, f"{base}/*") and fnmatchcase(name.rpartition("/")[2], stem)
    parts = pattern.split("/")
    names = name.split("/")[: len(parts)]
    return len(names) == len(parts) and all(map(fnmatchcase, names, parts))
