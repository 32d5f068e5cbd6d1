import os
import subprocess
import sys
import tempfile

import pytest
import torch

from swarm_diloco.errors import DiskError
from swarm_diloco.training.shared_memory import MAX_FRAGMENTS, SharedModel

NUM_VALUES = 20_011  # not a whole number of pages
WRITER = """
import os, sys, time, torch
from swarm_diloco.training.shared_memory import SharedModel
torch.set_num_threads(1)
shared = SharedModel.attach(int(sys.argv[1]))
print("started", flush=True)
round_ = 0
while os.getppid() == int(sys.argv[2]):
    round_ += 1
    with shared.writing(0):
        shared.theta.fill_(float(round_ % 2**20))  # exact in float32
        shared.set_round(0, round_)
    if round_ % 8 == 0:
        time.sleep(1e-4)  # a writer that never rests leaves no time for a whole read
"""


def test_both_sides_see_the_same_values_and_rounds() -> None:
    ours = SharedModel.create(NUM_VALUES, 2)
    theirs = SharedModel.attach(os.dup(ours.descriptor))
    assert (theirs.num_values, theirs.num_fragments) == (NUM_VALUES, 2)
    assert torch.count_nonzero(theirs.theta) == 0
    with ours.writing(1):
        ours.theta[10:].fill_(3.0)
        ours.set_round(1, 7)
    out = torch.empty(NUM_VALUES - 10)
    assert theirs.read_fragment(slice(10, NUM_VALUES), 1, out) == 7
    assert torch.all(out == 3.0)
    assert torch.count_nonzero(theirs.theta[:10]) == 0
    assert (theirs.round_of(0), theirs.round_of(1)) == (0, 7)
    theirs.delta.copy_(torch.arange(NUM_VALUES))
    assert torch.equal(ours.delta, torch.arange(NUM_VALUES, dtype=torch.float32))
    assert torch.all(ours.theta[10:] == 3.0)


def test_tensors_outlive_their_descriptors() -> None:
    shared = SharedModel.create(8, 1)
    theta = shared.theta
    shared.close()
    del shared
    theta.fill_(1.0)
    assert theta.sum() == 8


@pytest.mark.swarm
def test_a_reader_never_sees_a_torn_fragment() -> None:
    shared = SharedModel.create(NUM_VALUES, 1)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(shared.descriptor), str(os.getpid())],
        pass_fds=[shared.descriptor],
        stdout=subprocess.PIPE,
    )
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"started\n"
        out, rounds = torch.empty(NUM_VALUES), set()
        num_reads = 0
        while num_reads < 10_000 or len(rounds) < 100:
            assert writer.poll() is None
            round_ = shared.read_fragment(slice(0, NUM_VALUES), 0, out)
            low, high = out.aminmax()
            assert float(low) == float(high) == round_ % 2**20
            rounds.add(round_)
            num_reads += 1
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()


def test_a_writer_that_died_in_the_middle_is_not_waited_for_without_end() -> None:
    shared = SharedModel.create(8, 1)
    writing = shared.writing(0)
    writing.__enter__()
    with pytest.raises(TimeoutError, match="fragment 0"):
        shared.read_fragment(slice(0, 8), 0, torch.empty(8), timeout_seconds=0.01)
    writing.__exit__(None, None, None)
    assert shared.read_fragment(slice(0, 8), 0, torch.empty(8), timeout_seconds=0.0) == 0


def test_a_failed_write_leaves_the_fragment_readable() -> None:
    shared = SharedModel.create(8, 1)
    with pytest.raises(RuntimeError, match="broke"), shared.writing(0):
        raise RuntimeError("broke")
    assert shared.read_fragment(slice(0, 8), 0, torch.empty(8), timeout_seconds=0.0) == 0


def test_what_is_not_a_model_is_refused() -> None:
    with tempfile.TemporaryFile() as file:
        with pytest.raises(DiskError, match="not the shared memory"):
            SharedModel.attach(file.fileno())
        file.write(os.pread(SharedModel.create(8, 1).descriptor, 4096, 0))
        file.flush()
        with pytest.raises(DiskError, match="not the shared memory"):
            SharedModel.attach(file.fileno())
    for num_values, num_fragments in ((0, 1), (8, 0), (8, MAX_FRAGMENTS + 1)):
        with pytest.raises(ValueError, match="fragments"):
            SharedModel.create(num_values, num_fragments)


def test_memory_that_cannot_be_had_is_said_in_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskError, match=r"no 8 MB of shared memory for 1000000 parameters: No space"):
        SharedModel.create(10**6, 1)
