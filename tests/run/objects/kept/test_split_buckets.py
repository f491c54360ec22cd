"""The parts of a split as stores in a bucket: as on a disk, and all of them or none."""

import itertools
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import recshuf
from recshuf.errors import BusyNameError, OutputError, OutputExistsError, UsageError
from tests.conftest import Run
from tests.support.objects.object_outputs import AnyBucket, kill_at

SHARES = {"train": 0.7, "val": 0.2, "none": 0.1}
ROWS = 9
WRITES = "(PUT|POST|DELETE) "


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    """Return two files; the parts have 6, 2 and 1 of their records."""
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for number, file in enumerate(files):
        file.write_text("".join(f'{{"id": {row}}}\n' for row in range(number * 4, number * 5 + 4)))
    return files


def scatter(inputs: list[Path], place: Any, **options: Any) -> recshuf.ScatterReport:
    return recshuf.scatter(inputs, place, seed=11, **{"split": SHARES} | options)


def read(store: str) -> list[list[int]]:
    loader = recshuf.PileLoader(store, 1, epoch=1, columns=["_id", "id"])
    return [[int(batch["id"][0]), *batch["_id"][0].tolist()] for batch in loader]


BY_VALUE = {"split_by": "id", "split": {"train": 0.5, "val": 0.5}}


@pytest.mark.parametrize("options", [{"piles": 3}, pytest.param(BY_VALUE, marks=pytest.mark.slow)])
def test_parts_in_a_bucket_are_those_of_a_disk(
    bucket: AnyBucket, tmp_path: Path, inputs: list[Path], options: dict[str, Any]
) -> None:
    url = f"{bucket.url}/some/stores"
    found = [scatter(inputs, place, **options) for place in (tmp_path / "stores", url)]
    assert found[1].path == url
    assert [one.path for one in found[1].parts] == [f"{url}/{name}" for name in options.get("split", SHARES)]
    for local, far in zip(*(one.parts for one in found), strict=True):
        assert local.records == far.records
        outputs = []
        for store in (local.path, far.path):
            recshuf.gather(store, tmp_path / "out.jsonl", overwrite=True)
            outputs.append((tmp_path / "out.jsonl").read_bytes())
        assert outputs[0] == outputs[1]
        assert read(local.path) == read(far.path)
    # A part goes on as any store does, also without its mark.
    recshuf.compact(f"{url}/train", sets=1)
    with recshuf.PileStore(f"{url}/train").update() as update:
        update.append(inputs)
    assert recshuf.PileStore(f"{url}/train").num_records == found[0].parts[0].records + ROWS
    assert "mark" not in bucket.read(max(bucket.list_keys("some/stores/train/snapshot-"))).decode()
    with pytest.raises(OutputExistsError, match=f"^{url}: exists already; choose another prefix"):
        scatter(inputs, url)


def test_no_part_can_be_opened_before_all_can(bucket: AnyBucket, inputs: list[Path]) -> None:
    url = f"{bucket.url}/stores"

    def look() -> None:
        bucket.proxy.clear()  # of what calls this
        for name in SHARES:
            with pytest.raises(BusyNameError, match=rf"^{url}/{name}: .* recshuf clean {url}$"):
                recshuf.PileLoader(f"{url}/{name}", 1)
            with pytest.raises(BusyNameError):
                recshuf.PileWriter(f"{url}/{name}", "w")
        with pytest.raises(BusyNameError, match=rf"^{url}: another process makes the parts"):
            scatter(inputs, url)
        looked.append(True)

    looked: list[bool] = []
    bucket.proxy.call(r"DELETE .*scatter", look)
    scatter(inputs, url)
    assert looked
    assert [len(read(f"{url}/{name}")) for name in SHARES] == [6, 2, 1]


def test_what_another_process_makes_there_meanwhile_stays(bucket: AnyBucket, inputs: list[Path]) -> None:
    def take_over() -> None:
        bucket.proxy.clear()  # of what calls this
        bucket.put("stores/.scatter", b"of another")

    bucket.proxy.call(r"GET .*scatter", take_over)
    with pytest.raises(OutputError, match="another process has deleted it meanwhile; run again"):
        scatter(inputs, f"{bucket.url}/stores")
    assert bucket.read("stores/.scatter") == b"of another"


@pytest.mark.slow
def test_an_error_leaves_nothing_and_what_it_cannot_delete_is_cleaned(
    bucket: AnyBucket, inputs: list[Path], call: Run
) -> None:
    url, proxy = f"{bucket.url}/stores", bucket.proxy
    status, code, _ = bucket.refusal
    for at in itertools.count():
        proxy.clear()
        proxy.call(WRITES, lambda: None, times=at)
        proxy.answer(WRITES, status, code)
        if at % 3 == 2:
            proxy.answer("DELETE .*scatter", status, code, times=10**6)
        try:
            scatter(inputs, url)
        except OutputError:
            proxy.clear()
            if at % 3 == 2 and bucket.list_keys():
                assert call("clean", url).returncode == 0
                assert "stores/.scatter" in bucket.list_keys()
                assert call("clean", url, "--yes").stdout.endswith(b"removed\n")
            assert bucket.list_keys() == []
        else:
            if not any("/tails/" in key for key in bucket.list_keys()):
                break
            # What Google Cloud Storage needs for an upload could not be deleted after its end, which is no error.
            for name in SHARES:
                call("clean", f"{url}/{name}", "--yes")
            assert not any("/tails/" in key for key in bucket.list_keys())
            for key in bucket.list_keys():
                bucket.delete(key)
    assert at > 6
    assert [len(read(f"{url}/{name}")) for name in SHARES] == [6, 2, 1]


@pytest.mark.slow
def test_a_kill_at_any_request_leaves_all_parts_or_none(
    bucket: AnyBucket, inputs: list[Path], call: Run
) -> None:
    for at in itertools.count(0, 3):
        url = f"{bucket.url}/stores-{at}"
        code = kill_at(bucket.proxy, at, partial(scatter, inputs, url))
        there = [is_store(f"{url}/{name}") for name in SHARES]
        assert len({*there}) == 1
        if not there[0]:
            with pytest.raises(BusyNameError) if bucket.list_keys(f"stores-{at}/") else nullcontext():
                scatter(inputs, url)
            call("clean", url, "--yes")
            if bucket.list_keys(f"stores-{at}/"):
                assert [len(read(f"{url}/{name}")) for name in SHARES] == [6, 2, 1]
            else:
                scatter(inputs, url)
        assert [len(read(f"{url}/{name}")) for name in SHARES] == [6, 2, 1]
        if not code:
            break
    assert at > 12


def is_store(url: str) -> bool:
    try:
        recshuf.PileStore(url)
    except (BusyNameError, UsageError):
        return False
    return True
