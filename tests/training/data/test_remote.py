"""Streams of a web server on this machine, which also fails on cue."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest

from swarm_diloco.errors import DataError
from swarm_diloco.training.data.remote import StreamedShard, expand, streamed_documents
from swarm_diloco.training.data.settings import DataSettings
from swarm_diloco.training.data.source import TrainingData
from swarm_diloco.training.data.tokenizer import byte_tokenizer


class Server:
    """Files by path; `failures` is how the next requests for content go wrong, oldest first."""

    def __init__(self):
        self.files = {}
        self.failures = []
        self.requests = []
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
                    self.send_error(failure)
                    return
                status, first, last = 200, 0, len(content) - 1
                if wanted := self.headers.get("Range"):
                    begin, _, end = wanted.removeprefix("bytes=").partition("-")
                    status, first, last = 206, int(begin), min(last, int(end or last))
                self.send_response(status)
                self.send_header("Accept-Ranges", "bytes")
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
    assert list(StreamedShard(settings, 1, tmp_path).open()) == texts[2] + texts[3]
    assert {path for _, path in server.requests} == {"/text-02.jsonl", "/text-03.jsonl"}
    assert list(StreamedShard(settings, 0, tmp_path).open()) == texts[0] + texts[1]
    assert list(streamed_documents(settings, tmp_path)) == sum(texts, [])


def test_reading_goes_on_from_any_place(server, tmp_path):
    texts = fill(server)
    source = StreamedShard(settings_of(server), 0, tmp_path)
    everything = texts[0] + texts[1]
    for count in (0, 1, 19, 20, 21, 40):
        reader = source.open()
        iterator = iter(reader)
        assert [next(iterator) for _ in range(count)] == everything[:count]
        again = source.open(reader.state())
        rest = iter(again)
        taken = [next(rest) for _ in range(min(5, 40 - count))]
        assert taken + list(source.open(again.state())) == everything[count:], "a restart of a restart too"


def test_parquet_and_plain_text_are_read(server, tmp_path):
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.table({"body": ["a", "b"], "number": [1, 2]}), sink)
    server.files["/a.parquet"] = sink.getvalue().to_pybytes()
    server.files["/a.txt"] = b"one\ntwo\n<|endoftext|>\nthree\n"
    parquet = settings_of(server, dataset=f"{server.address}/a.parquet", format="parquet", text_field="body", shards=1)
    assert list(StreamedShard(parquet, 0, tmp_path).open()) == ["a", "b"]
    text = settings_of(server, dataset=f"{server.address}/a.txt", format="text", shards=1)
    assert list(StreamedShard(text, 0, tmp_path).open()) == ["one\ntwo", "three"]


def test_more_shards_than_files_is_refused(server, tmp_path):
    fill(server)
    with pytest.raises(DataError, match="4 files, so data.shards is at most that, not 5"):
        StreamedShard(settings_of(server, shards=5), 0, tmp_path).open()


def test_what_cannot_be_read_is_named(server, tmp_path):
    with pytest.raises(DataError, match="/text-"):
        list(streamed_documents(settings_of(server), tmp_path))
    fill(server)
    with pytest.raises(DataError, match="no text in the field 'body'"):
        list(StreamedShard(settings_of(server, text_field="body"), 0, tmp_path).open())


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


@pytest.mark.parametrize("failure", [503, 429, 404, "cut"])
def test_a_host_that_fails_and_recovers_costs_no_sequence(server, make, tmp_path_factory, failure):
    fill(server)
    expected = make().next_batch(60).tolist()
    for path in tmp_path_factory.getbasetemp().glob("**/tokens/*/*"):
        path.unlink()
    server.failures = [failure] * 9
    data = make(retry_seconds=[0.0] * 10)
    assert data.next_batch(60).tolist() == expected
    assert any("trying again" in notice for notice in data.notices())


def test_a_host_that_stays_down_is_an_error_and_the_next_call_tries_again(server, make):
    fill(server)
    server.failures = [503] * 1000
    data = make(retry_seconds=[0.0, 0.0])
    with pytest.raises(DataError, match="the data host has failed 3 times: .*503"):
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
