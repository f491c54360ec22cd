"""The recipes of docs/recipes.md do what they say, on small data."""

import json
import re
import shlex
from collections import Counter
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import Run
from tests.support.formats.format_tools import decompress_file

PAGE = (Path(__file__).parents[1] / "docs" / "recipes.md").read_text()
RECIPES = dict(re.findall(r"^## (.*?)\n.*?^```sh\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL))


def write(path: str, records: list[dict[str, Any]]) -> None:
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text("".join(f"{json.dumps(record)}\n" for record in records))


def read(path: str) -> list[dict[str, Any]]:
    """Return the records of a file or folder of JSON lines or Parquet, in its order."""
    files = sorted(Path(path).glob("shard-*")) if Path(path).is_dir() else [Path(path)]
    records: list[dict[str, Any]] = []
    for file in files:
        if file.suffix == ".parquet":
            records += pq.read_table(file).to_pylist()
        else:
            records += map(json.loads, decompress_file(file).splitlines())
    return records


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for part in (0, 1):
        ids = range(250 * part, 250 * (part + 1))
        write(f"posts/{part}.jsonl", [{"id": one, "user": f"u{one * 7 % 60}"} for one in ids])
        write(f"crawl/{part}.jsonl", [{"id": one, "text": f"page {one % 200}"} for one in ids])
    for name, count in {"books": 40, "web": 90, "common": 80, "rare": 5}.items():
        write(f"{name}/a.jsonl", [{"id": f"{name} {number}"} for number in range(count)])
    visits = [{"patient": f"p{number * 5 % 13}", "scan": number} for number in range(100)]
    write("reports.jsonl", [{"patient": one["patient"]} for one in reversed(visits)])
    write("scans.jsonl", visits)
    pq.write_table(pa.Table.from_pylist(visits), "scans.parquet")


def follow(call: Run, name: str) -> None:
    """Run the commands of one of eight recipes; 10^8 records are too many for a test."""
    assert len(RECIPES) == PAGE.count("```sh") == 8
    for line in RECIPES[name].replace("100000000", "100").splitlines():
        program, *arguments = shlex.split(line)
        assert program == "recshuf"
        assert call(*arguments).returncode == 0


def values(path: str, field: str) -> list[Any]:
    return [record[field] for record in read(path)]


def test_parts_that_share_no_user(call: Run):
    follow(call, "Parts that share no user")
    users = {name: set(values(f"parts/{name}", "user")) for name in ("train", "val", "test")}
    assert set.union(*users.values()) == {f"u{number}" for number in range(60)}
    assert sum(map(len, users.values())) == 60
    assert sorted(values("epoch", "id")) == sorted(values("parts/train", "id"))
    write("posts/2.jsonl", [{"id": one, "user": f"u{one % 80}"} for one in range(500, 700)])
    call(
        "posts/", "-o", "more/", "--split", "train=0.8,val=0.1,test=0.1", "--split-by", "user", "--seed", "9"
    )
    assert all(users[name] <= set(values(f"more/{name}", "user")) for name in users)


def test_parts_of_exact_sizes(call: Run):
    follow(call, "Parts of exact sizes")
    parts = [values(f"parts/{name}", "id") for name in ("train", "val", "test")]
    assert [len(part) for part in parts] == [490, 5, 5]
    assert sorted(chain.from_iterable(parts)) == list(range(500))


def test_no_duplicates_then_a_split(call: Run):
    follow(call, "No duplicates, then a split")
    assert sorted(values("clean", "id")) == list(range(200))
    assert sorted(values("parts/train", "id") + values("parts/val", "id")) == list(range(200))


def test_a_mix_of_70_and_30_percent(call: Run):
    follow(call, "A mix of 70 % and 30 %")
    ids = values("mix", "id")
    assert Counter(one.split()[0] for one in ids) == {"books": 70, "web": 30}
    assert Counter(Counter(ids).values()) == {1: 10 + 30, 2: 30}
    assert call("verify", "books/", "web/", "mix/").returncode == 0


def test_rare_classes_more_often(call: Run):
    follow(call, "Rare classes more often")
    assert Counter(Counter(values("train", "id")).values()) == {1: 80, 3: 5}
    assert Counter(one.split()[0] for one in values("small", "id")) == {"common": 8, "rare": 5}


def test_patients_together(call: Run):
    follow(call, "Patients together")
    records = read("scans")
    groups = [
        (name, [one["scan"] for one in own]) for name, own in groupby(records, lambda one: one["patient"])
    ]
    assert len(groups) == len({name for name, _ in groups}) == 13
    assert all(scans == sorted(scans) for _, scans in groups)
    shards = [{one["patient"] for one in read(str(path))} for path in Path("scans").iterdir()]
    assert len(shards) == 4
    assert sum(map(len, shards)) == 13


def test_two_data_sets_in_one_order_of_cases(call: Run):
    follow(call, "Two data sets in one order of cases")
    orders = [list(dict.fromkeys(values(path, "patient"))) for path in ("scans", "reports.jsonl.zst")]
    assert len(orders[0]) == 13
    assert orders[0] == orders[1]


def test_one_percent_to_look_at(call: Run):
    follow(call, "One percent to look at")
    ids = values("sample.jsonl", "id")
    assert len(set(ids)) == len(ids) == 5
