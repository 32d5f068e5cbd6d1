"""The trainer as the client sees it: spoken to, stopped, dead for a reason, started again. A fake in real processes."""

import asyncio
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from swarm_diloco.training.channel import FromTrainer, Offer, Ready
from swarm_diloco_client import trainer_process
from swarm_diloco_client.supervising import keep_training
from swarm_diloco_client.trainer_process import TrainerProcess, TrainerSettings


@pytest.fixture(autouse=True)
def fake_trainer_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("test")
    yield descriptor
    os.close(descriptor)


async def start(folder: Path, memory: int, script: str = "") -> TrainerProcess:
    if script:
        (folder / "script").write_text("\n".join(script.split(", ")))
    return await TrainerProcess.start(TrainerSettings(), memory=memory, folder=folder, module="fake_trainer")


async def all_of(trainer: TrainerProcess) -> list[FromTrainer]:
    return [message async for message in trainer.messages()]


def pids(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "pids").read_text().split()]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("die SIGKILL", "killed by the kernel, likely out of memory"),
        ("say on, die SIGTERM", "ended by the signal SIGTERM; its last words: on"),
        (
            "say Traceback, say RuntimeError: CUDA error, exit 1",
            "exit status 1; its last words: RuntimeError: CUDA error",
        ),
        ("exit 3", "exit status 3; its last words: it said nothing"),
        ("say noise, fail no text came for 600 s", "no text came for 600 s"),
        ("babble, wait", "it said what no trainer says"),
    ],
)
async def test_a_dead_trainers_reason_is_plain(script: str, reason: str, tmp_path: Path, memory: int):
    trainer = await start(tmp_path, memory, script)
    assert await all_of(trainer) == []
    assert (await trainer.why_ended()).startswith(reason)
    await trainer.stop()


async def test_messages_come_in_order_until_its_end(tmp_path: Path, memory: int):
    trainer = await start(tmp_path, memory, "ready, offer, exit 0")
    assert [type(message) for message in await all_of(trainer)] == [Ready, Offer]
    await trainer.stop()


async def test_stop_lets_it_save(tmp_path: Path, memory: int):
    trainer = await start(tmp_path, memory, "ready, wait")
    assert isinstance(await anext(aiter(trainer.messages())), Ready)
    await trainer.stop()
    assert (tmp_path / "saved").exists()
    assert not psutil.pid_exists(trainer.pid)


async def test_stop_ends_one_that_does_not_listen(tmp_path: Path, memory: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trainer_process, "STOP_SECONDS", 0.2)
    trainer = await start(tmp_path, memory, "ready, hang")
    assert isinstance(await anext(aiter(trainer.messages())), Ready)
    await trainer.stop()
    assert not psutil.pid_exists(trainer.pid)


async def test_stop_does_not_wait_for_one_that_has_nothing_yet(
    tmp_path: Path, memory: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(trainer_process, "STOP_SECONDS", 1e6)
    trainer = await start(tmp_path, memory, "hang")
    await trainer.stop()
    assert not psutil.pid_exists(trainer.pid)


async def test_a_trainer_whose_client_is_killed_ends_too(tmp_path: Path):
    """By its parent-death signal, although it never looks at the channel."""
    (tmp_path / "script").write_text("ready\nhang")
    client = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import asyncio, os, sys; from pathlib import Path\n"
        "from swarm_diloco_client.trainer_process import TrainerProcess, TrainerSettings\n"
        "async def main():\n"
        "    trainer = await TrainerProcess.start(TrainerSettings(), memory=os.memfd_create('x'),\n"
        "                                         folder=Path(sys.argv[1]), module='fake_trainer')\n"
        "    async for _ in trainer.messages():\n"
        "        print(trainer.pid, flush=True)\n"
        "asyncio.run(main())",
        str(tmp_path),
        stdout=asyncio.subprocess.PIPE,
    )
    assert client.stdout is not None
    trainer = psutil.Process(int(await client.stdout.readline()))
    client.kill()
    await client.wait()
    await asyncio.to_thread(psutil.wait_procs, [trainer], 10)
    assert not trainer.is_running() or trainer.status() == psutil.STATUS_ZOMBIE


async def test_a_terminals_interrupt_does_not_reach_it(tmp_path: Path, memory: int):
    trainer = await start(tmp_path, memory, "ready, wait")
    assert isinstance(await anext(aiter(trainer.messages())), Ready)
    assert os.getpgid(trainer.pid) not in (0, os.getpgid(0))
    await trainer.stop()


async def test_the_trainer_is_told_of_its_threads_before_it_imports_anything(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    environment = TrainerSettings(threads=3).environment()
    assert (environment["OMP_NUM_THREADS"], environment["OMP_WAIT_POLICY"]) == ("3", "PASSIVE")
    assert environment["TOKENIZERS_PARALLELISM"] == "false"


# --- the supervisor


async def converse(trainer: TrainerProcess) -> bool:
    """What the client does, in short: read to the end, and tell whether anything was offered."""
    return any(isinstance(message, Offer) for message in await all_of(trainer))


async def supervise(folder: Path, memory: int, script: str, restarts: int) -> list[str]:
    """Run until so many trainers have ended; returns what the volunteer read."""
    (folder / "script").write_text("\n".join(script.split(", ")))
    said: list[str] = []
    enough = asyncio.Event()

    def say(line: str) -> None:
        said.append(line)
        if len(said) >= restarts:
            enough.set()

    starting = partial(start, folder, memory)
    task = asyncio.create_task(keep_training(starting, converse, say=say, pauses=(0.01, 0.02, 0.05)))
    await enough.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return said


async def test_a_dead_trainer_is_started_again_after_growing_pauses(tmp_path: Path, memory: int):
    said = await supervise(tmp_path, memory, "ready, die SIGKILL", restarts=4)
    assert said[:4] == [
        f"the trainer ended: killed by the kernel, likely out of memory. It starts again in {pause} s"
        for pause in ("0.01", "0.02", "0.05", "0.05")
    ]
    assert len(set(pids(tmp_path))) >= 4


async def test_one_that_worked_begins_with_the_shortest_pause_again(tmp_path: Path, memory: int):
    said = await supervise(tmp_path, memory, "ready, offer, die SIGKILL", restarts=3)
    assert all(line.endswith("in 0.01 s") for line in said[:3])


async def test_cancelling_stops_the_last_trainer_with_a_checkpoint(tmp_path: Path, memory: int):
    (tmp_path / "script").write_text("ready\nwait")
    is_ready = asyncio.Event()

    async def read(trainer: TrainerProcess) -> bool:
        async for _ in trainer.messages():
            is_ready.set()
        return False

    task = asyncio.create_task(keep_training(partial(start, tmp_path, memory), read, say=print))
    await is_ready.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert (tmp_path / "saved").exists()
    assert not psutil.pid_exists(pids(tmp_path)[0])


async def test_a_trainer_that_cannot_be_started_is_tried_again(tmp_path: Path):
    said: list[str] = []
    tried = asyncio.Event()

    async def fail() -> TrainerProcess:
        if said:
            tried.set()
        raise OSError(12, os.strerror(12))

    task = asyncio.create_task(keep_training(fail, converse, say=said.append, pauses=(0.01,)))
    await tried.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert said[0] == "the trainer ended: it could not be started (Cannot allocate memory). It starts again in 0.01 s"
