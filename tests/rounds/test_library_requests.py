"""Whatever is asked of the library is answered, refused with a reason, or ends the stream: nothing else."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from damage import HOSTILE, damaged
from small_swarm import first_state, genesis_of, identity, rules_for
from swarm_diloco.diloco.records import hash_of, pack, unpack
from swarm_diloco.errors import RecordError, StreamLost
from swarm_diloco.network.interface import MAX_FRAME_BYTES
from swarm_diloco.rounds.library import MAX_REQUEST_BYTES, Library, RunFiles
from swarm_diloco.rounds.log import Log
from swarm_diloco.rounds.snapshot import write_snapshot

RULES = rules_for()
GENESIS = genesis_of(RULES, [identity("boot").peer])
FILE = b"a file of the run"
REQUESTS: list[list[Any]] = [
    ["manifest"], ["genesis"], ["file", hash_of(FILE), 0], ["head"], ["headers", 0], ["forks"], ["part", hash_of(FILE)],
    ["snapshots"], ["snapshot index", 0], ["snapshot chunk", 0, 0],
]  # fmt: skip


class Asker:
    """A stream on which one request comes."""

    peer = identity("asker").peer

    def __init__(self, request: bytes) -> None:
        self._requests = [request]
        self.answers: list[bytes] = []

    async def send(self, frame: bytes, *, timeout_seconds: float) -> None:
        self.answers.append(bytes(frame))

    async def receive(self, *, timeout_seconds: float, limit_bytes: int) -> bytes:
        if not self._requests:
            raise StreamLost("no more")
        return self._requests.pop()

    async def close(self) -> None: ...


@pytest.fixture
def library(tmp_path: Path) -> Library:
    path = tmp_path / "file"
    path.write_bytes(FILE)
    theta, momentum = first_state()
    write_snapshot(
        tmp_path / "snapshots" / "0", run=RULES.run_id, round_=0, digest=RULES.run_id, theta=theta, momentum=momentum,
        applied=[0],
    )  # fmt: skip

    async def wait_past(_round: int) -> None:
        raise StreamLost("the end of the test")

    log = Log(tmp_path, RULES, GENESIS)
    files = RunFiles(b"manifest", GENESIS, {hash_of(FILE): path})
    return Library(files, log, tmp_path / "snapshots", wait_past=wait_past, head_age_seconds=lambda: 1e12)


def asked(library: Library, request: bytes) -> list[bytes]:
    asker = Asker(request)
    asyncio.run(library.serve(asker))  # type: ignore[arg-type]
    return asker.answers


def test_any_request_is_answered_refused_or_ends_the_stream(library: Library) -> None:
    @given(damaged(st.sampled_from([pack([1, *request]) for request in [*REQUESTS, ["follow", 0]]]), "msgpack"))
    def is_survived(request: bytes) -> None:
        for answer in asked(library, request):
            assert len(answer) <= MAX_FRAME_BYTES
            assert answer[:1] in (b"\0", b"\1", GENESIS[:1])

    is_survived()
    for request in HOSTILE:
        asked(library, request[:MAX_REQUEST_BYTES])


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request[0])
def test_a_request_has_one_form(library: Library, request_: list[Any]) -> None:
    """A field too many is refused, so that a later version may give it a meaning."""
    (answer,) = asked(library, pack([1, *request_]))
    assert (answer[:1] == b"\1") == (request_[0] != "part")
    (refused,) = asked(library, pack([1, *request_, 0]))
    assert refused[:1] == b"\0"


def test_a_head_of_a_run_that_slept_for_years_can_still_be_read(library: Library) -> None:
    (answer,) = asked(library, pack([1, "head"]))
    fields = unpack(answer[1:], "head", limit_bytes=100)
    assert (fields.integer(), len(fields.hash_()), fields.integer()) == (0, 32, 30 * 86_400_000)
    with pytest.raises(RecordError):
        fields.integer()
