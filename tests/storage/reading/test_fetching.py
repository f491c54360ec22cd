"""Ranges are fetched ahead as memory allows, each byte once, whoever reads them."""

import random
import threading

import pytest

from recshuf.storage.reading.fetching import Fetcher

CONTENT = bytes(random.Random(1).randbytes(5_000_000))


class Server:
    """Counts the requests for a file that is its number of bytes before `CONTENT`."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.gate = threading.Event()
        self.gate.set()

    def get(self, file: int, begin: int, end: int) -> bytes:
        self.gate.wait()
        self.asked.append((begin, end))
        return CONTENT[file + begin : file + end]


def read(fetcher: Fetcher[int], begin: int, end: int, file: int = 0) -> bytes:
    view = memoryview(bytearray(end - begin))
    assert fetcher.read_into(file, view, begin) == end - begin
    return bytes(view)


def test_what_is_expected_is_fetched_once_and_given_up_when_it_is_read() -> None:
    server = Server()
    fetcher = Fetcher(1_000_000, server.get)
    ranges = [(200_000, 300_000), (0, 100_000), (700_000, 900_000), (300_100, 310_000)]
    fetcher.expect(0, ranges)
    for begin, end in ranges:
        assert read(fetcher, begin, end) == CONTENT[begin:end]
    # Two that are near each other are one request.
    assert sorted(server.asked) == [(0, 100_000), (200_000, 310_000), (700_000, 900_000)]
    assert fetcher.held_bytes == 0


def test_no_more_is_held_than_memory_allows_but_what_is_read_is_there() -> None:
    server = Server()
    fetcher = Fetcher(1_000_000, server.get)
    ranges = [(begin, begin + 400_000) for begin in range(0, 4_000_000, 500_000)]
    fetcher.expect(0, ranges)
    assert fetcher.held_bytes == 800_000
    assert read(fetcher, *ranges[6]) == CONTENT[slice(*ranges[6])]  # out of turn
    for begin, end in [*ranges[:6], ranges[7]]:
        assert fetcher.held_bytes <= 1_200_000
        assert read(fetcher, begin, end) == CONTENT[begin:end]
    assert sorted(server.asked) == ranges
    # What somebody expected who has ended is given up.
    fetcher.expect(1, ranges[:5])
    fetcher.expect(0, ranges[:4])
    fetcher.forget(1)
    assert fetcher.held_bytes == 800_000
    for begin, end in ranges[:4]:
        assert read(fetcher, begin, end) == CONTENT[begin:end]
    assert fetcher.held_bytes == 0


@pytest.mark.parametrize("seed", range(3))
def test_random_reads_give_the_bytes(seed: int) -> None:
    draw, server = random.Random(seed), Server()
    fetcher = Fetcher(300_000, server.get)
    for _ in range(60):
        begin = draw.randrange(900_000)
        end = begin + draw.randrange(1, 100_000)
        if draw.random() < 0.5:
            fetcher.expect(draw.randrange(2), [(begin, end)])
        else:
            file = draw.randrange(2)
            assert read(fetcher, begin, end, file) == CONTENT[file + begin : file + end]
    for file in range(2):
        fetcher.forget(file)
    assert fetcher.held_bytes == 0


def test_a_failure_is_raised_where_it_is_read_and_asked_for_again() -> None:
    server, fails = Server(), [True]

    def get(file: int, begin: int, end: int) -> bytes:
        if fails:
            raise OSError(fails.pop())
        return server.get(file, begin, end)

    fetcher = Fetcher(1_000_000, get)
    fetcher.expect(0, [(0, 1000)])
    with pytest.raises(OSError, match="True"):
        read(fetcher, 0, 1000)
    assert read(fetcher, 0, 1000) == CONTENT[:1000]


@pytest.mark.parametrize(("urgent", "at_once"), [(3, 3), (18, 16)])
def test_what_is_hastened_is_alone_in_flight(urgent: int, at_once: int) -> None:
    server = Server()
    server.gate.clear()
    fetcher = Fetcher(4_000_000, server.get)
    ranges = [(begin, begin + 100_000) for begin in range(0, 4_000_000, 200_000)]
    fetcher.expect(0, ranges[:urgent])
    fetcher.hasten()
    fetcher.expect(0, ranges[urgent:])
    in_flight = fetcher.held_bytes
    server.gate.set()
    assert in_flight == 100_000 * at_once
    for begin, end in ranges:
        assert read(fetcher, begin, end) == CONTENT[begin:end]
    assert len(server.asked) == len(ranges)
    assert max(server.asked[:urgent]) < min(server.asked[urgent:]), (
        "what follows began before the first had begun"
    )
    fetcher.hasten()  # nothing is in flight: nothing waits for it
    fetcher.expect(0, ranges)
    assert read(fetcher, *ranges[-1]) == CONTENT[slice(*ranges[-1])]
