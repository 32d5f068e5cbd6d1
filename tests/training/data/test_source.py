import random
import threading
from collections import Counter
from dataclasses import dataclass

import pytest
import torch

from swarm_diloco.errors import DataError
from swarm_diloco.training.data.importing import write_held_out, write_shards
from swarm_diloco.training.data.packing import pack
from swarm_diloco.training.data.settings import DataSettings
from swarm_diloco.training.data.source import TrainingData
from swarm_diloco.training.data.tokenizer import Encoder, byte_tokenizer

TOKENIZER = byte_tokenizer()
LENGTH = 16
DOCUMENTS = [f"document {n:03d} says {n * 37 % 101} and ends. " * 2 for n in range(90)]


@dataclass(frozen=True)
class Log:
    workers: tuple[str, ...] = ("me",)
    credited: tuple[tuple[int, int, int], ...] = ()


class Files:
    """The run's files, as a client process hands them out."""

    def __init__(self, folder):
        self.folder = folder
        self.fetched = []
        self.announced = []
        self.failing = set()
        self.threads = set()

    def fetch(self, path):
        self.threads.add(threading.get_ident())
        self.fetched.append(path)
        if path in self.failing:
            raise DataError(f"nobody has {path}")
        return self.folder / path

    def announce(self, path):
        self.announced.append(path)


@pytest.fixture
def files(tmp_path):
    write_shards(DOCUMENTS, tmp_path / "run", 6)
    write_held_out(["a held-out text " * 20], tmp_path / "run")
    return Files(tmp_path / "run")


@pytest.fixture
def make(files, tmp_path):
    made = []

    def make_data(*, folder="tokens", shards=6, **changes):
        data = TrainingData(
            DataSettings(shards=shards),
            tmp_path / folder,
            TOKENIZER,
            sequence_length=LENGTH,
            seed=11,
            fetch=changes.pop("fetch", files.fetch),
            announce=files.announce,
            window_tokens=20 * LENGTH,
            **changes,
        )
        made.append(data)
        return data

    yield make_data
    for data in made:
        data.close()


def rows(batch):
    return [bytes(row.to(torch.uint8).tolist()) for row in batch]


def num_blocks(files):
    counts = []
    for shard in range(6):
        lines = (files.folder / f"data/train-{shard:05d}.jsonl").read_text().splitlines()
        documents = [line[10:-2] for line in lines]
        counts.append(len(pack(documents, Encoder(TOKENIZER), LENGTH)))
    return counts


def test_a_batch_is_whole_sequences_as_int64(make):
    data = make()
    data.assign(Log(), "me")
    batch = data.next_batch(5)
    assert batch.dtype == torch.int64
    assert batch.shape == (5, LENGTH)
    with pytest.raises(ValueError, match="at least 1"):
        data.next_batch(0)


def test_a_pass_holds_all_text_once_and_the_next_begins_with_a_notice(make, files):
    data = make()
    data.assign(Log(), "me")
    total = sum(num_blocks(files))
    first = Counter(rows(data.next_batch(total)))
    assert data.notices() == ()
    second = Counter(rows(data.next_batch(total)))
    assert first == second
    assert any("pass 2" in notice for notice in data.notices())
    covered = Counter()
    for data_pass, shard, begin, end in data.ranges():
        covered[data_pass, shard] += end - begin
    assert covered == {(data_pass, shard): n for data_pass in (0, 1) for shard, n in enumerate(num_blocks(files))}


def test_the_batches_size_does_not_change_the_order(make):
    one, other = make(), make(folder="elsewhere")
    for data in (one, other):
        data.assign(Log(), "me")
    assert torch.equal(one.next_batch(300), torch.cat([other.next_batch(n) for n in (1, 7, 100, 150, 42)]))


def test_nothing_is_lost_and_nothing_comes_twice_after_twenty_restarts(make):
    unbroken = make()
    unbroken.assign(Log(), "me")
    expected = rows(unbroken.next_batch(400))
    rng = random.Random(0)
    for _ in range(20):
        data, found, credited = make(folder="restarted"), [], {}
        data.assign(Log(), "me")
        while len(found) < 400:
            found += rows(data.next_batch(min(rng.randint(1, 60), 400 - len(found))))
            if rng.random() < 0.5:
                for data_pass, shard, _, end in data.ranges():
                    credited[data_pass, shard] = end
                data.credit(data.ranges())
            state = data.state()
            data.close()
            data = make(folder="restarted")
            data.restore(state)
            data.assign(Log(credited=tuple((*key, end) for key, end in credited.items())), "me")
        assert found == expected


def test_three_workers_train_disjoint_text(make, files):
    workers = ("a", "b", "c")
    seen = Counter()
    ledger = {}
    datas = {name: make(folder=name) for name in workers}
    for _ in range(5):
        for name, data in datas.items():
            data.assign(Log(workers, tuple((*key, end) for key, end in ledger.items())), name)
            data.next_batch(12)
        for data in datas.values():
            for data_pass, shard, first, end in data.ranges():
                seen.update((data_pass, shard, block) for block in range(first, end))
                ledger[data_pass, shard] = end
            data.credit(data.ranges())
            assert data.ranges() == ()
    assert sum(seen.values()) == 5 * 3 * 12
    assert max(seen.values()) == 1


def test_what_a_crashed_worker_did_not_get_listed_is_trained_by_the_next(make, files):
    crashed = make(folder="crashed")
    crashed.assign(Log(("me", "other")), "me")
    trained = rows(crashed.next_batch(7))
    credited = [(data_pass, shard, end - 3) for data_pass, shard, _, end in crashed.ranges()][:1]
    heir = make(folder="heir")
    heir.assign(Log(("other",), tuple(credited)), "other")
    text = rows(heir.next_batch(sum(num_blocks(files)) - credited[0][2]))
    assert len(crashed.ranges()) == 1
    assert set(trained[-3:]) <= set(text)


def test_more_workers_than_shards_is_said_and_all_train(make):
    workers = tuple(f"worker {n}" for n in range(9))
    told, passes = [], set()
    for name in workers:
        data = make(folder=name)
        data.assign(Log(workers), name)
        data.assign(Log(workers), name)
        assert len(data.next_batch(4)) == 4
        told.append(sum("more workers than" in notice for notice in data.notices()))
        passes |= {entry[0] for entry in data.ranges()}
    assert sorted(told) == [0] * 6 + [1] * 3
    assert len(passes) == 4, "the common pass, and one of its own for each of three"


def test_forgotten_sequences_come_again(make):
    data = make()
    data.assign(Log(), "me")
    first = data.next_batch(9)
    data.forget()
    assert torch.equal(data.next_batch(9), first)


def test_files_are_announced_then_fetched_once_each_in_the_callers_thread(make, files):
    data = make()
    data.assign(Log(), "me")
    for _ in range(sum(num_blocks(files)) // 4):
        data.next_batch(4)
    training = [path for path in files.fetched if "train" in path]
    assert len(set(training[:6])) == 6, "and only then the first again"
    assert set(files.announced) >= set(training[1:])
    assert files.threads == {threading.get_ident()}


def test_the_next_shard_is_ready_before_it_is_needed(make, files):
    data = make()
    data.assign(Log(), "me")
    data.next_batch(1)
    first = files.fetched[0]
    shard = int(first[11:16])
    for _ in range(num_blocks(files)[shard] - 2):
        data.next_batch(1)
    assert len(files.fetched) == 2, "one block of the first shard is left, and the second was asked for"


def test_a_file_that_nobody_has_costs_no_sequence(make, files):
    data = make()
    data.assign(Log(), "me")
    data.next_batch(1)
    shard = int(files.fetched[0][11:16])
    left = num_blocks(files)[shard] - 1
    files.failing = {f"data/train-{other:05d}.jsonl" for other in range(6)} - {files.fetched[0]}
    assert len(data.next_batch(left)) == left, "what is there is trained"
    data.forget()
    with pytest.raises(DataError, match="nobody has"):
        data.next_batch(left + 5)
    assert data.ranges() == (), "a batch that was not given out is not trained"
    assert len(data.next_batch(left + 1)) == left + 1
    before = data.ranges()
    for _ in range(2):
        with pytest.raises(DataError, match="nobody has"):
            data.next_batch(4)
    assert data.ranges() == before
    files.failing = set()
    assert len(data.next_batch(4)) == 4
    assert sum(end - first for _, _, first, end in data.ranges()) == left + 5


def test_a_bad_line_is_an_error_that_names_the_file(make, files):
    for path in (files.folder / "data").glob("train-*"):
        path.write_text("nonsense\n")
    data = make()
    data.assign(Log(), "me")
    with pytest.raises(DataError, match=r"train-0000\d\.jsonl"):
        data.next_batch(1)


def test_text_too_short_for_one_sequence_is_an_error(make, files):
    for path in (files.folder / "data").glob("train-*"):
        path.write_text('{"text": "short"}\n')
    data = make()
    data.assign(Log(), "me")
    with pytest.raises(DataError, match="no shard"):
        data.next_batch(1)


def test_held_out_text_is_the_same_for_all_and_bounded(make, files):
    data = make()
    held_out = data.held_out()
    assert held_out.dtype == torch.int64
    assert torch.equal(held_out, make(folder="other").held_out("held-out"))
    assert torch.equal(data.held_out(max_tokens=5 * LENGTH), held_out[:5])
    assert bytes(held_out.flatten().tolist()[:16]) == b"a held-out text "
    write_held_out(["tiny"], files.folder, "small")
    with pytest.raises(DataError, match="'small' holds no 16 tokens"):
        data.held_out("small")


def test_waiting_lets_the_caller_look_after_other_things(make, files, monkeypatch):
    gate = threading.Event()
    original = Encoder.encode

    def held_up(self, documents):
        assert gate.wait(60)
        return original(self, documents)

    monkeypatch.setattr(Encoder, "encode", held_up)
    data = make(while_waiting=gate.set)
    data.assign(Log(), "me")
    assert len(data.next_batch(2)) == 2


def test_closing_leaves_no_thread_behind(make):
    before = set(threading.enumerate())
    with make() as data:
        data.assign(Log(), "me")
        data.next_batch(2)
        assert set(threading.enumerate()) > before
    assert set(threading.enumerate()) == before


def test_a_position_is_needed_first(make):
    with pytest.raises(AssertionError, match="assign"):
        make().next_batch(1)
