"""Streams of a web server on this machine, which also fails on cue."""

import gzip
import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest

from swarm_diloco.errors import DataError
from swarm_diloco.training.data.remote import remote_documents, remote_shard
from swarm_diloco.training.data.settings import DataSettings
from swarm_diloco.training.data.source import TrainingData
from swarm_diloco.training.data.tokenizer import byte_tokenizer
from swarm_diloco.training.data.web import HostError, expand, read_from


class Server:
    """Files by path; `failures` is how the next requests for content go wrong, oldest first."""

    def __init__(self):
        self.files = {}
        self.failures = []
        self.requests = []
        self.retry_after = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self):
                self.answer(send_content=False)

            def do_GET(self):
                self.answer(send_content=True)

            def answer(self, *, send_content):
                server.requests.append((self.command, self.path))
                content = server.files.get(self.path)
                if content is None:
                    self.send_error(404)
                    return
                failure = server.failures.pop(0) if send_content and server.failures else None
                if isinstance(failure, int):
                    self.send_response(failure)
                    self.send_header("Retry-After", str(server.retry_after))
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if failure == "page":
                    content = b"<html>come back later</html>"
                status, first, last = 200, 0, len(content) - 1
                wanted = self.headers.get("Range")
                if wanted and failure != "no ranges":
                    begin, _, end = wanted.removeprefix("bytes=").partition("-")
                    status, first, last = 206, int(begin), min(last, int(end or last))
                    if first > last:
                        self.send_error(416)
                        return
                self.send_response(status)
                self.send_header("Content-Type", "text/html" if failure == "page" else "text/plain")
                if status == 206:
                    self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
                self.send_header("Content-Length", str(last - first + 1))
                self.end_headers()
                if send_content:
                    part = content[first : last + 1]
                    self.wfile.write(part[: len(part) // 2] if failure == "cut" else part)
                    self.close_connection = failure == "cut"

            def log_message(self, *arguments):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(datasets.config, "STREAMING_READ_RETRY_INTERVAL", 0)
    monkeypatch.setattr(datasets.config, "STREAMING_READ_MAX_RETRIES", 2)
    made = Server()
    yield made
    made.close()


def jsonl(texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def fill(server, num_files=4, count=20):
    texts = [[f"file {n} document {m} {'x' * (m % 5)}" for m in range(count)] for n in range(num_files)]
    for n, documents in enumerate(texts):
        server.files[f"/text-{n:02d}.jsonl"] = jsonl(documents)
    return texts


def settings_of(server, **changes):
    address = f"{server.address}/text-{{00..03}}.jsonl"
    return DataSettings(**{"source": "url", "dataset": address, "shards": 2, **changes})


def test_an_address_stands_for_a_row_of_files():
    assert expand("http://h/a-{08..10}.b") == ("http://h/a-08.b", "http://h/a-09.b", "http://h/a-10.b")
    assert expand("http://h/a.b") == ("http://h/a.b",)


def test_shards_are_disjoint_and_ask_for_their_own_files_only(server, tmp_path):
    texts = fill(server)
    settings = settings_of(server)
    assert list(remote_shard(settings, 1, tmp_path).open()) == texts[2] + texts[3]
    assert {path for _, path in server.requests} == {"/text-02.jsonl", "/text-03.jsonl"}
    assert list(remote_shard(settings, 0, tmp_path).open()) == texts[0] + texts[1]
    assert list(remote_documents(settings, tmp_path)) == [text for documents in texts for text in documents]


def packed_twice(content):
    half = len(content) // 2
    return gzip.compress(content[:half]) + gzip.compress(content[half:])


def parquet(texts):
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.table({"text": texts, "number": list(range(len(texts)))}), sink, row_group_size=7)
    return sink.getvalue().to_pybytes()


def plain(texts):
    return "".join(f"{text.strip()}\r\n<|endoftext|>\r\n" for text in texts).encode()


@pytest.mark.parametrize(
    ("form", "suffix", "write"),
    [
        ("jsonl", "jsonl", jsonl),
        ("jsonl", "jsonl.gz", lambda texts: packed_twice(jsonl(texts))),
        ("text", "txt", plain),
        ("parquet", "parquet", parquet),
    ],
)
def test_each_format_is_read_on_from_any_place(server, tmp_path, form, suffix, write):
    if form == "parquet":
        pytest.importorskip("aiohttp", reason="datasets needs it for parquet over HTTP")
    texts = [[f"file {n} document {m} {'é' * (m % 5)}x" for m in range(20)] for n in range(2)]
    for n, documents in enumerate(texts):
        server.files[f"/text-{n}.{suffix}"] = write(documents)
    settings = settings_of(server, dataset=f"{server.address}/text-{{0..1}}.{suffix}", format=form, shards=1)
    source = remote_shard(settings, 0, tmp_path)
    everything = texts[0] + texts[1]
    assert list(remote_documents(settings, tmp_path)) == everything
    for count in (0, 1, 19, 20, 21, 40):
        reader = source.open()
        iterator = iter(reader)
        assert [next(iterator) for _ in range(count)] == everything[:count]
        again = source.open(reader.state())
        rest = iter(again)
        taken = [next(rest) for _ in range(min(5, 40 - count))]
        assert taken + list(source.open(again.state())) == everything[count:], "a restart of a restart too"


@pytest.mark.parametrize("failure", [None, "no ranges"])
def test_bytes_are_read_from_any_place(server, failure):
    server.files["/a"] = content = bytes(range(256)) * 600
    for offset in (0, 1, 65_536, 100_000, len(content)):
        server.failures = [failure]
        assert b"".join(read_from(f"{server.address}/a", offset)) == content[offset:]


@pytest.mark.parametrize(
    ("failure", "named"), [(503, "503"), (404, "404"), ("page", "web page"), ("cut", "broke off, 50 bytes before")]
)
def test_a_hosts_failure_is_named(server, failure, named):
    server.files["/a"] = bytes(100)
    server.failures, server.retry_after = [failure], 7
    with pytest.raises(HostError, match=named) as raised:
        list(read_from(f"{server.address}/a", 0))
    assert raised.value.retry_after_seconds == (7 if isinstance(failure, int) else 0)


@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(bytes(range(256)) * 99)[:-20]])
def test_damaged_gzip_is_the_hosts_failure(server, content):
    server.files["/a.gz"] = content
    with pytest.raises(HostError, match="gzip"):
        list(read_from(f"{server.address}/a.gz", 0))


def test_a_host_that_is_not_there_is_named(server):
    server.close()
    with pytest.raises(HostError, match="refused"):
        list(read_from(f"{server.address}/a", 0))


def test_more_shards_than_files_is_refused(server, tmp_path):
    fill(server)
    with pytest.raises(DataError, match=r"4 files, so data\.shards is at most that, not 5"):
        remote_shard(settings_of(server, shards=5), 0, tmp_path)


def test_what_cannot_be_read_is_named(server, tmp_path):
    with pytest.raises(DataError, match="/text-"):
        list(remote_documents(settings_of(server), tmp_path))
    fill(server)
    with pytest.raises(DataError, match="no text in the field 'body'"):
        list(remote_shard(settings_of(server, text_field="body"), 0, tmp_path).open())


@pytest.fixture
def make(server, tmp_path):
    made = []

    def make_data(**changes):
        data = TrainingData(
            settings_of(server),
            tmp_path,
            byte_tokenizer(),
            sequence_length=16,
            seed=1,
            fetch=lambda path: pytest.fail(f"{path} is not needed"),
            window_tokens=16 * 8,
            **changes,
        )
        data.assign(Position(), "me")
        made.append(data)
        return data

    yield make_data
    for data in made:
        data.close()


class Position:
    workers = ("me",)
    credited = ()


@pytest.mark.parametrize("failure", [503, 429, 404, "cut", "page", "no ranges"])
def test_a_host_that_fails_and_recovers_costs_no_sequence(server, make, tmp_path, failure):
    fill(server)
    expected = make().next_batch(120).tolist()
    shutil.rmtree(tmp_path / "tokens")
    server.failures = [failure, failure, None, failure]
    data = make(retry_seconds=[0.0] * 10)
    assert data.next_batch(120).tolist() == expected
    assert failure == "no ranges" or any("trying again" in notice for notice in data.notices())


def test_a_host_that_stays_down_is_an_error_and_the_next_call_tries_again(server, make):
    fill(server)
    server.failures = [404] * 1000
    data = make(retry_seconds=[0.0, 0.0])
    with pytest.raises(DataError, match=r"failed 3 times: .*404"):
        data.next_batch(4)
    assert data.ranges() == ()
    server.failures = []
    assert data.next_batch(4).shape == (4, 16)


def test_streamed_text_takes_little_disk(server, make, tmp_path):
    fill(server, count=60)
    data = make()
    for _ in range(80):
        data.next_batch(3)
    for folder in (tmp_path / "tokens").iterdir():
        assert len(list(folder.glob("window-*"))) <= 2


# A hub data set: the library reads a local folder in the same way


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path):
    folder = tmp_path / "a-data-set"
    (folder / "data").mkdir(parents=True)
    for n in range(3):
        texts = [f"file {n} document {m}" for m in range(20)]
        (folder / f"data/train-{n:05d}-of-00003.parquet").write_bytes(parquet(texts))
    (folder / "data/validation-00000-of-00001.parquet").write_bytes(parquet(["held out " * 9]))

    def settings(**changes):
        return DataSettings(source="hub", dataset=str(folder), revision=COMMIT, format="parquet", **changes)

    return settings


def test_shards_of_the_hub_are_disjoint_and_read_on_from_any_place(hub, tmp_path):
    settings, found = hub(shards=2), []
    for shard in range(2):
        source = remote_shard(settings, shard, tmp_path)
        everything = list(source.open())
        for count in (0, 7, 20, len(everything)):
            reader = source.open()
            iterator = iter(reader)
            assert [next(iterator) for _ in range(count)] == everything[:count]
            assert list(source.open(reader.state())) == everything[count:]
        found += everything
    assert found == [f"file {n} document {m}" for n in range(3) for m in range(20)]
    with pytest.raises(DataError, match="3 files"):
        remote_shard(hub(shards=4), 0, tmp_path).open()


def test_a_split_of_the_hub_is_held_out(hub, tmp_path):
    def held_out(settings):
        fetch = {"data/other.jsonl": tmp_path / "other.jsonl"}.__getitem__
        data = TrainingData(settings, tmp_path, byte_tokenizer(), sequence_length=9, seed=1, fetch=fetch)
        return data.held_out

    found = held_out(hub(evaluation_split="validation"))()
    assert bytes(found[:8].flatten().tolist()) == b"held out " * 8
    (tmp_path / "other.jsonl").write_bytes(jsonl(["another set"]))
    assert bytes(held_out(hub(evaluation_split="validation"))("other")[0].tolist()) == b"another s"
    with pytest.raises(DataError, match="cannot read"):
        held_out(hub(evaluation_split="no such split"))()
