"""Parts of the records of a store: what an Arrow expression keeps, and what a limit leaves."""

import gc
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import recshuf
from recshuf.errors import PileError, UsageError
from tests.support.formats.format_tools import find_open_files
from tests.support.stores.epoch_oracle import flatten
from tests.support.stores.fake_piles import FakePiles
from tests.support.stores.small_stores import write

COUNT = 200


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of lines, whose columns exist when they are decoded."""
    folder = tmp_path_factory.mktemp("filter")
    records = [
        {"n": n, "lang": None if n % 10 == 0 else ("en" if n % 4 else "de"), "meta": {"w": n / 2}}
        for n in range(COUNT)
    ]
    (folder / "a.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
    recshuf.scatter(folder / "a.jsonl", folder / "store", seed=3, piles=7)
    return folder / "store"


EXPRESSIONS: list[tuple[Any, Any]] = [
    (pc.field("lang") == "en", lambda n: n % 10 != 0 and n % 4 != 0),
    (~(pc.field("lang") == "en"), lambda n: n % 10 != 0 and n % 4 == 0),
    (pc.field("lang").is_null() | (pc.field("n") > 191), lambda n: n % 10 == 0 or n > 191),
    (pc.field("meta", "w") < 3, lambda n: n < 6),
    (pc.field("_id", "row").isin([5, 7]), lambda n: n in (5, 7)),
    (pc.scalar(True), lambda _: True),
]


@pytest.mark.parametrize(("expression", "keeps"), EXPRESSIONS)
def test_an_epoch_holds_what_is_true(expression: Any, keeps: Any, store: Path) -> None:
    expected = [n for n in range(COUNT) if keeps(n)]
    loader = recshuf.PileLoader(store, 2, columns=["n"], epoch=1, filter=expression)
    assert loader.num_records == len(expected)
    assert len(loader) == len(expected) // 2
    assert f"filter='{len(expected):,} of {COUNT} records, " in repr(loader)
    again = pickle.loads(pickle.dumps(loader))
    batches = [batch["n"].tolist() for batch in loader]
    assert all(len(batch) == 2 for batch in batches)
    assert sorted(flatten(batches)) == expected
    assert [batch["n"].tolist() for batch in again] == batches


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"columns": ["m"]}, "columns: no column 'm'"),
    *(
        ({"filter": given}, f"filter.*{problem}")
        for given, problem in (
            (
                pc.field("lnag") == "en",
                r"No match for FieldRef\.Name\(lnag\); the store has 'n', 'lang', 'meta', '_id'; ",
            ),
            (pc.field("lang") == 5, r"\(lang == 5\): .* no kernel matching input types .*; compare columns"),
            (pc.field("n") + 1, r"is of the type int64; give an expression that is true or false"),
            (pc.field("n") < 0, r"\(n < 0\) is true for none of the 200 records of .*store; "),
            (lambda _: True, r"give an expression of Arrow on columns, such as pyarrow\.compute\.field"),
            ([("lang", "==", "en")], "give an expression of Arrow"),
            ("lang == 'en'", "give an expression of Arrow"),
        )
    ),
]


def test_a_refused_loader_leaves_no_file_open(store: Path) -> None:
    for options, problem in REFUSED:
        with pytest.raises(UsageError, match=f"^{problem}"):
            recshuf.PileLoader(store, 4, **options)
        gc.collect()
        assert not find_open_files(store)


def test_a_filter_that_leaves_no_batch_is_refused(store: Path, tmp_path: Path) -> None:
    problem = r"^filter: keeps 50 records, less than a global batch of 64 \(.*\); make it smaller, or give drop_last=False$"
    options: dict[str, Any] = {"world_size": 2, "rank": 1, "filter": pc.field("n") < 50}
    with pytest.raises(UsageError, match=problem):
        recshuf.PileLoader(store, 32, **options)
    with pytest.raises(UsageError, match=r"^filter: keeps 100 records, .* of 128 \(.*\); make it smaller$"):
        recshuf.MixLoader({store: 1, shutil.copytree(store, tmp_path / "b"): 1}, 64, **options)
    (batch,) = recshuf.PileLoader(store, 32, drop_last=False, **options)
    assert len(batch["n"]) == 25


def test_a_state_names_the_records_and_not_the_words(store: Path) -> None:
    loader = recshuf.PileLoader(store, 4, columns=["n"], filter=pc.field("n") < 50)
    whole = [batch["n"].tolist() for batch in loader]
    loader.seek(0, 5)
    state = json.loads(json.dumps(loader.state_dict()))
    same = recshuf.PileLoader(store, 4, columns=["n"], filter=pc.field("n") <= 49)
    same.load_state_dict(state)
    assert [batch["n"].tolist() for batch in same] == whole[5:]
    for options, named in [
        *(
            ({"filter": other}, "'filter' is '50 of 200 records, .*; give the filter of the state")
            for other in (pc.field("n") <= 50, pc.field("n") >= COUNT - 50)
        ),
        ({}, "the state has 'filter', which this loader has not"),
        ({"filter": pc.field("n") < 50, "limit": 40}, "no 'limit' in the state; leave out limit$"),
    ]:
        with pytest.raises(UsageError, match=named):
            recshuf.PileLoader(store, 4, **options).load_state_dict(state)


def test_damage_and_a_changing_filter_are_errors(store: Path) -> None:
    class Damaged(FakePiles):
        def digest(self, cells: Any) -> Any:
            return super().digest(cells[:0] or cells[:1] * 2)

    with pytest.raises(PileError, match="hold other records"):
        recshuf.PileLoader(Damaged({"a": [30]}, 3), 4, filter=pc.field("id") > 5)
    loader = recshuf.PileLoader(FakePiles({"a": [30]}, 3), 4, filter=pc.field("id") > 5)
    loader.reader.source.piles.expression = pc.field("id") > 6
    with pytest.raises(UsageError, match="keeps other records than before"):
        list(loader)


def test_documents_of_a_filter_are_packed(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    documents = [rng.integers(0, 100, rng.integers(1, 30)).tolist() for _ in range(60)]
    table = pa.table({"n": range(60), "tokens": pa.array(documents, pa.list_(pa.uint16()))})
    write(tmp_path / "store", "one", table, piles=5)

    def pack() -> Any:
        return recshuf.PileLoader(tmp_path / "store", 2, filter=pc.field("n") < 31).packed(
            16, column="tokens"
        )

    kept, batches = np.concatenate(documents[:31]), iter(pack())
    whole = [next(batches)["tokens"] for _ in range(30)]
    epoch = np.concatenate(whole).ravel()[: kept.size]
    assert sorted(epoch.tolist()) == sorted(kept.tolist())
    loader = pack()
    loader.load_state_dict(loader.state_dict() | {"step": 13})
    assert next(iter(loader))["tokens"].tolist() == whole[13].tolist()
    with pytest.raises(
        UsageError, match=r"^packed: its sequences have no end; make the loader without limit$"
    ):
        recshuf.PileLoader(tmp_path / "store", 2, limit=8).packed(16, column="tokens")
