"""What every `Bucket` promises: conditions hold, faults are overcome or told, uploads are invisible until completed.

A subclass has two fixtures: `bucket`, a new one of an emulator, and `store`, the same one as it is written to.
"""

import time
from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest

from recshuf.errors import MissingBucketError, OutputError
from recshuf.storage.requests import MissingObject
from recshuf.storage.writing import Bucket, Conflict, Match, MissingUpload, OpenUpload, Part, StoredObject
from tests.support.objects.object_outputs import AnyBucket

LEAST_PART = 5 << 20
"""Bytes of a part that each store takes before the last one."""


def upload(store: Bucket, bodies: Sequence[bytes], match: Match | None = None) -> tuple[str, list[Part]]:
    """Leave an open upload of some parts for the key ``a``, and return its identifier and parts."""
    begun = store.begin_upload("a", "token", match or Match())
    return begun, [store.send_part("a", begun, number, body) for number, body in enumerate(bodies, 1)]


class BucketSuite:
    """Tests of a `Bucket`."""

    put_request: str
    """Pattern of requests that put the object ``a``."""
    other_etag: str
    """Version that no object has."""
    busy = (503, "SlowDown")
    refusals: ClassVar[Sequence[tuple[int, str, str]]]
    """Status and code of answers that are final, and what is said."""
    page_keys = 110
    """More keys than a page of a listing holds, or a request deletes."""
    lists_uploads = True
    """Whether `find_uploads` yields open uploads."""

    def open_missing(self) -> Bucket:
        """Return a bucket that does not exist."""
        raise NotImplementedError

    def forget_upload(self, bucket: AnyBucket) -> None:
        """Have the emulator answer as the store does about an upload that was aborted."""

    def list_calls(self, store: Bucket) -> list[Callable[[], object]]:
        """Return a request of each kind about the key ``k``, or what begins with it."""
        begun = store.begin_upload("k", "token", Match())
        return [
            lambda: store.put("k", b"", Match()),
            lambda: store.read("k"),
            lambda: list(store.list("k")),
            lambda: store.send_part("k", begun, 1, b"x"),
            lambda: store.find_token("k"),
            lambda: store.delete(["k"]),
            lambda: store.delete_if("k", self.other_etag),
        ]

    def test_an_object_is_made_once_and_replaced_only_as_it_was(self, bucket: AnyBucket, store: Bucket):
        etag = store.put("a", b"one", Match())
        assert store.read("a") == (b"one", etag)
        found, *others = store.list("")
        assert found == StoredObject("a", 3, etag, found.modified)
        assert abs(found.modified - time.time()) < 3600
        assert not others
        assert store.read_range("a", 1, 3, None) == store.read_range("a", 1, 3, etag) == (b"ne", etag)
        for given in (("a", 1, 3, self.other_etag), ("a", 1, 5, None), ("a", 9, 12, None)):
            with pytest.raises(Conflict):
                store.read_range(*given)
        with pytest.raises(MissingObject):
            store.read_range("none", 0, 1, None)
        for key, match in (("a", Match()), ("a", Match(self.other_etag)), ("none", Match(etag))):
            with pytest.raises(Conflict):
                store.put(key, b"two", match)
        assert bucket.read_all() == {"a": b"one"}
        new = store.put("a", b"two", Match(etag))
        assert new != etag
        assert store.read("a") == (b"two", new)
        assert store.read("none") is None

    def test_a_store_that_ignores_ranges_gives_no_other_bytes(self, bucket: AnyBucket, store: Bucket):
        store.put("a", b"longer", Match())
        bucket.proxy.add("GET .*", lambda one: one.forward(left_out=("Range", "X-Ms-Range")), 10**6)
        with pytest.raises((Conflict, OutputError)):
            store.read_range("a", 1, 3, None)

    @pytest.mark.parametrize("is_old", [False, True])
    def test_a_put_whose_reply_is_lost_has_succeeded(self, bucket: AnyBucket, store: Bucket, is_old: bool):
        old = store.put("a", b"old", Match()) if is_old else None
        bucket.proxy.lose_reply(self.put_request)
        etag = store.put("a", b"mine", Match(old))
        assert store.read("a") == (b"mine", etag)

    def test_a_put_whose_reply_is_lost_is_no_excuse_for_others(self, bucket: AnyBucket, store: Bucket):
        bucket.put("a", b"theirs")
        bucket.proxy.reset(self.put_request)
        with pytest.raises(Conflict):
            store.put("a", b"mine", Match())
        assert bucket.read("a") == b"theirs"

    def test_a_store_that_is_busy_is_asked_again(self, bucket: AnyBucket, store: Bucket):
        bucket.proxy.answer(self.put_request, *self.busy, times=2)
        bucket.proxy.reset(self.put_request)
        store.put("a", b"one", Match())
        assert bucket.read_all() == {"a": b"one"}
        assert (store.requests.count, store.requests.retries) == (4, 3)
        bucket.proxy.clear()
        bucket.proxy.answer(self.put_request, *self.busy, times=100)
        with pytest.raises(OutputError, match=r"/a: the store is busy \(.*\), after 8 attempts; run again"):
            store.put("a", b"two", Match())
        assert bucket.proxy.count(self.put_request) == 8

    @pytest.mark.parametrize("cuts", ["dropped", "closed"])
    def test_an_answer_whose_body_is_cut_is_asked_for_again_and_then_told_in_a_line(
        self, bucket: AnyBucket, store: Bucket, cuts: str
    ):
        store.put("a", b"one", Match())
        for call in (lambda: store.read("a"), lambda: store.read("none"), lambda: list(store.list("a"))):
            whole: object = call()
            bucket.proxy.cut_body("", 2, cuts)
            assert call() == whole
            bucket.proxy.cut_body("", 100, cuts)
            with pytest.raises(OutputError, match=rf"^{bucket.url}/\w+: the store cannot be reached: .*$"):
                call()
            bucket.proxy.clear()

    def test_what_is_wrong_is_said_in_a_line(self, bucket: AnyBucket, store: Bucket):
        calls = self.list_calls(store)
        for status, code, said in self.refusals:
            bucket.proxy.clear()
            bucket.proxy.answer("", status, code, times=10**6)
            for call in calls:
                with pytest.raises(OutputError, match=rf"^{bucket.url}/(k|\.scratch/.*): {said}") as told:
                    call()
                assert "\n" not in str(told.value)

    def test_a_bucket_that_does_not_exist_is_told(self, bucket: AnyBucket):
        store = self.open_missing()
        for call in (lambda: store.put("k", b"x", Match()), lambda: list(store.list("k"))):
            with pytest.raises(
                MissingBucketError,
                match=r"^\w+://no-such-\w+: there is no such \w+; check the name, or create it",
            ):
                call()

    @pytest.mark.parametrize(
        "bodies", [[bytes(LEAST_PART), b"end"], [b""], [b"x"]], ids=["large", "empty", "tiny"]
    )
    def test_an_upload_is_seen_when_it_is_completed(
        self, bucket: AnyBucket, store: Bucket, bodies: list[bytes]
    ):
        begun, parts = upload(store, bodies)
        size = sum(map(len, bodies))
        assert store.part_sizes == list(map(len, bodies))
        assert store.is_whole("a", begun, parts, size)
        assert not store.is_whole("a", begun, parts, size + 1)
        assert len(parts) == 1 or not store.is_whole("a", begun, parts[:1], size)
        known = [OpenUpload("a", begun, ""), OpenUpload("other", begun, "")]
        found = [(one.key, one.upload_id) for one in store.find_uploads("a", known)]
        assert found == ([("a", begun)] if self.lists_uploads else [])
        assert list(store.find_uploads("b", known)) == []
        assert bucket.list_keys("a") == []
        assert store.find_token("a") is None
        store.complete_upload("a", begun, parts, Match())
        assert bucket.read("a") == b"".join(bodies)
        assert store.find_token("a") == "token"
        assert list(store.find_uploads("a", known)) == []
        if size:  # of Azure, an upload without bytes has no block
            with pytest.raises(MissingUpload):
                store.is_whole("a", begun, parts, size)
        store.abort_upload("a", begun)
        assert bucket.list_keys() == ["a"]

    @pytest.mark.parametrize("is_old", [False, True])
    def test_an_upload_replaces_only_what_it_may(self, bucket: AnyBucket, store: Bucket, is_old: bool):
        match = Match(store.put("a", b"old", Match()) if is_old else None)
        begun, parts = upload(store, [b"mine"], match)
        late, late_parts = upload(store, [b"late"], match)
        store.complete_upload("a", begun, parts, match)
        assert bucket.read("a") == b"mine"
        with pytest.raises(Conflict):
            store.complete_upload("a", late, late_parts, match)
        assert bucket.read("a") == b"mine"

    def test_an_aborted_upload_is_missing(self, bucket: AnyBucket, store: Bucket):
        begun, parts = upload(store, [b"x"])
        for _ in range(2):
            store.abort_upload("a", begun)
        assert bucket.list_uploads() == bucket.list_keys() == []
        self.forget_upload(bucket)
        with pytest.raises(MissingUpload):
            store.complete_upload("a", begun, parts, Match())
        with pytest.raises(MissingUpload):
            store.is_whole("a", begun, parts, 1)
        assert bucket.list_keys() == []

    def test_objects_are_deleted_and_listed_beyond_a_page(self, bucket: AnyBucket, store: Bucket):
        keys = [f"a/{number:04d} #?" for number in range(self.page_keys)]
        for key in (*keys, "b"):
            bucket.put(key, b"x")
        assert [(one.key, one.byte_count) for one in store.list("a/")] == [(key, 1) for key in keys]
        store.delete([*keys[3:], "none"])
        store.delete([])
        assert bucket.list_keys() == [*keys[:3], "b"]

    def test_an_object_is_deleted_as_it_was(self, bucket: AnyBucket, store: Bucket):
        old = store.put("a", b"one", Match())
        new = store.put("a", b"two", Match(old))
        store.delete_if("a", old)
        assert bucket.read_all() == {"a": b"two"}
        store.delete_if("a", new)
        store.delete_if("none", new)
        assert bucket.list_keys() == []
