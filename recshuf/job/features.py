"""What a run does with records besides their order: it keeps groups, drops duplicates, splits, or weighs its inputs.

Must not import NumPy: commands start with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast, get_args

from recshuf.dataclass import dataclass
from recshuf.errors import UsageError
from recshuf.system.paths import PLAIN_NAME_RULE, is_plain_name
from recshuf.system.units import parse_exact

if TYPE_CHECKING:
    from recshuf.job.options import Numbers, Options


_TOLERANCE = Fraction(1, 10**9)
_MOST_COPIES = 10**6
_MOST = 255
GroupOrder = Literal["input", "random"]
GROUP_ORDERS = get_args(GroupOrder)
_RECORD = "record"
_FLAGS = ("--group-by", "--dedup", "--split", "--weights", "--copies")
"""Of the options of which a run takes one."""


def name_of(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


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
    return shares


def check_shares(given: Any) -> dict[str, Fraction]:
    shares = parse_shares(given) if isinstance(given, str) else given
    if not isinstance(shares, Mapping) or not 1 < len(shares) <= _MOST:
        raise UsageError(
            f"--split: {given!r:.80} is no split; give 2 to {_MOST} shares by name, such as train=0.99,val=0.01"
        )
    for name in shares:
        if not isinstance(name, str) or not is_plain_name(name):
            raise UsageError(f"--split: name {name!r}: {PLAIN_NAME_RULE}")
    exact = {name: _read_share(name, share) for name, share in shares.items()}
    if abs(sum(exact.values(), Fraction(-1))) > _TOLERANCE:
        total = float(sum(exact.values()))
        raise UsageError(f"--split: the shares add up to {total:.10g}; let them add up to 1")
    return exact


def _read_share(name: str, share: Any) -> Fraction:
    try:
        # A float is what its shortest text says, so that Python and the command mean the same share.
        exact = parse_exact(str(share)) if isinstance(share, float | str | Fraction) else Fraction()
    except ValueError:
        exact = Fraction()
    if not 0 < exact < 1:
        raise UsageError(f"--split: share {share!r} of {name!r}: give a number between 0 and 1")
    return exact


@dataclass(frozen=True, slots=True)
class GroupBy:
    """Records with equal values of the fields stay together."""

    fields: tuple[str, ...]
    order: GroupOrder = "input"
    flag: ClassVar[str] = "--group-by"
    counts_records: ClassVar[bool] = False

    @property
    def word_count(self) -> int:
        return 3 if self.order == "random" else 2

    def to_json(self) -> dict[str, object]:
        return {"fields": list(self.fields), "order": self.order}


@dataclass(frozen=True, slots=True)
class Dedup:
    """Of records with equal fields, the first is kept."""

    fields: tuple[str, ...]
    """Empty for whole records."""
    flag: ClassVar[str] = "--dedup"
    word_count: ClassVar[int] = 2
    counts_records: ClassVar[bool] = False

    def to_json(self) -> dict[str, object]:
        return {"fields": list(self.fields) or _RECORD}


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """The output is cut into parts, each a folder of shards."""

    shares: Mapping[str, Fraction]
    fields: tuple[str, ...] = ()
    """All records with equal values of these go to one part; empty for parts of exact sizes."""
    seed: int = 0
    flag: ClassVar[str] = "--split"
    word_count: ClassVar[int] = 2

    @property
    def counts_records(self) -> bool:
        return not self.fields

    def to_json(self) -> dict[str, object]:
        shares = {name: show_number(share) for name, share in self.shares.items()}
        return {"shares": shares} | ({"by": list(self.fields), "seed": str(self.seed)} if self.fields else {})


@dataclass(frozen=True, slots=True)
class Mixture:
    """How often the records of each INPUT are taken."""

    weights: tuple[Fraction, ...] = ()
    copies: tuple[Fraction, ...] = ()
    word_count: ClassVar[int] = 1

    @property
    def counts_records(self) -> bool:
        """Whether the records of each input are counted before they are read: not if each is taken equally often."""
        return not all(number >= 1 and number.denominator == 1 for number in self.copies or (0,))

    def list_numbers(self) -> list[dict[str, str]]:
        word, numbers = ("weight", self.weights) if self.weights else ("copies", self.copies)
        return [{word: show_number(number)} for number in numbers]

    @property
    def flag(self) -> str:
        return "--weights" if self.weights else "--copies"


Feature = GroupBy | Dedup | SplitFiles | Mixture


def show_features(features: Mapping[str, Any]) -> str:
    """Return the options that a manifest tells of; empty for a plain shuffle.

    >>> show_features({"dedup": {"fields": ["url", "text"], "kept": 7}})
    '--dedup url,text'
    """
    texts = []
    if group := features.get("group_by"):
        texts.append(f"--group-by {','.join(group['fields'])} --group-order {group['order']}")
    if dedup := features.get("dedup"):
        fields = dedup["fields"]
        texts.append(f"--dedup {fields if isinstance(fields, str) else ','.join(fields)}")
    if split := features.get("split"):
        texts.append("--split " + ",".join(f"{name}={share}" for name, share in split["shares"].items()))
        texts += [f"--split-by {','.join(split['by'])} --split-seed {split['seed']}"] if "by" in split else []
    for word, flag in (("weight", "--weights"), ("copies", "--copies")):
        numbers = [source[word] for source in features.get("sources", ()) if word in source]
        texts += [f"{flag} {','.join(numbers)}"] if numbers else []
    return " ".join(texts)


def find_fields(feature: Feature | None) -> tuple[str, tuple[str, ...]] | None:
    """Return the option that names fields by whose values records are told apart, and these; None if there is none."""
    if isinstance(feature, GroupBy | Dedup) and feature.fields:
        return feature.flag, feature.fields
    return ("--split-by", feature.fields) if isinstance(feature, SplitFiles) and feature.fields else None


def choose_feature(options: Options) -> Feature | None:
    """Return what a run does besides the order; None for a plain shuffle. A second one is a `UsageError`."""
    given = [flag for flag in _FLAGS if cast("dict[str, object]", options)[name_of(flag)] is not None]
    if len(given) > 1:
        raise UsageError(
            f"{given[0]} and {given[1]}: give one of them in a run; the output of one run can be the input of the next"
        )
    _check_companions(options)
    if options["group_by"] is not None:
        if options["head_count"] is not None:
            raise UsageError(
                "--head-count: not with --group-by, as it would cut groups; sample in a run of its own, with another --seed, and group its output"
            )
        return GroupBy(
            split_names("--group-by", options["group_by"]) or (), _choose_order(options["group_order"])
        )
    if options["dedup"] is not None:
        _check_dedup(options)
        fields = split_names("--dedup", options["dedup"]) or ()
        return Dedup(() if fields == (_RECORD,) else fields)
    if options["split"] is not None:
        return _choose_split(options)
    if options["weights"] is not None:
        return Mixture(weights=_parse_numbers("--weights", options["weights"]))
    if options["copies"] is not None:
        return Mixture(copies=_parse_numbers("--copies", options["copies"]))
    return None


def _check_companions(options: Options) -> None:
    for name, flag, needed in (
        ("group_order", "--group-order", "group_by"),
        ("split_by", "--split-by", "split"),
        ("split_seed", "--split-seed", "split_by"),
    ):
        values = cast("dict[str, object]", options)
        if values[name] is not None and values[needed] is None:
            raise UsageError(f"{flag}: is used with --{needed.replace('_', '-')} only; give that, too")


def _check_dedup(options: Options) -> None:
    flags = {"head_count": "-n", "shard_records": "--shard-records", "shard_bytes": "--shard-bytes"}
    given = [flag for name, flag in flags.items() if cast("dict[str, object]", options)[name] is not None]
    if given:
        remedy = "take the sample of the output" if given == ["-n"] else "give --shards"
        raise UsageError(
            f"{', '.join(given)}: not with --dedup: the number of records kept is not known before; {remedy}"
        )


def _choose_order(order: str | None) -> GroupOrder:
    if order is None:
        return "input"
    if order not in GROUP_ORDERS:
        raise UsageError(f"--group-order {order!r} is not possible; choose one of {', '.join(GROUP_ORDERS)}")
    return cast("GroupOrder", order)


def _choose_split(options: Options) -> SplitFiles:
    shares = check_shares(options["split"])
    if options["head_count"] is not None:
        raise UsageError(
            "--head-count: not with --split, whose parts are samples themselves; leave one of them out"
        )
    if options["split_by"] is None and options["on_bad_record"] != "fail":
        raise UsageError(
            "--on-bad-record: not with --split alone, whose sizes are known before records are read; give --split-by, too, or "
            "leave one of them out"
        )
    if (count := options["shards"]) is not None and count < len(shares):
        raise UsageError(
            f"--shards {count}: fewer than the {len(shares)} parts of --split; give at least {len(shares)}"
        )
    seed = options["split_seed"]
    if options["split_by"] is None:
        return SplitFiles(shares)
    return SplitFiles(shares, split_names("--split-by", options["split_by"]) or (), seed or 0)


def _parse_numbers(flag: str, given: Numbers) -> tuple[Fraction, ...]:
    numbers = []
    for text in given.split(",") if isinstance(given, str) else given:
        try:
            number = parse_exact(str(text).strip())
        except ValueError:
            number = Fraction(-1)
        if number < 0:
            raise UsageError(f"{flag}: {text!r} is no number from 0 on; write for example {flag} 0.7,0.3")
        if flag == "--copies" and number > _MOST_COPIES:
            raise UsageError(f"{flag}: {text!r} is out of range; it must be from 0 to {_MOST_COPIES:,}")
        numbers.append(number)
    if not any(numbers):
        raise UsageError(f"{flag}: all numbers are 0; let one be larger")
    return tuple(numbers)


def show_number(number: Fraction) -> str:
    """Return an exact number as text: with a point if it ends, else as a fraction.

    >>> show_number(Fraction("0.30")), show_number(Fraction(1, 3)), show_number(Fraction(2))
    ('0.3', '1/3', '2')
    """
    rest = number.denominator
    for factor in (2, 5):
        while rest % factor == 0:
            rest //= factor
    return f"{Decimal(number.numerator) / number.denominator:f}" if rest == 1 else str(number)


def split_names(option: str, names: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """Return the names in a list or comma-separated string; None for None."""
    if names is None:
        return None
    split = tuple(names.split(",") if isinstance(names, str) else names)
    if not split or "" in split:
        raise UsageError(f"{option} holds an empty name; write for example {option} a,b")
    name, count = Counter(split).most_common(1)[0]
    if count > 1:
        raise UsageError(f"{option} holds {name!r} twice; give each name once")
    return split
