"""The trainer process: `python -m swarm_diloco_client.trainer CHANNEL MEMORY FOLDER …`, started by the client.

It has no network. What it trains with, the run's folder holds; what happens, the client tells it over the channel.
"""

import argparse
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from swarm_diloco.diloco.fragments import MAX_LAYOUT_BYTES
from swarm_diloco.disk import read_file
from swarm_diloco.errors import ModelError, SwarmDilocoError
from swarm_diloco.manifest import MODEL_CONFIG, MODEL_LAYOUT
from swarm_diloco.run_folder import RunFolder
from swarm_diloco.training.channel import Channel, Failed
from swarm_diloco.training.checkpoint import Checkpoint
from swarm_diloco.training.data.source import TrainingData
from swarm_diloco.training.data.tokenizer import load_tokenizer
from swarm_diloco.training.device import choose_device, choose_micro_batch, free_bytes
from swarm_diloco.training.inner_loop import InnerLoop
from swarm_diloco.training.local_model import LocalModel
from swarm_diloco.training.model import build_model, check_model, layout_of
from swarm_diloco.training.shared_memory import SharedModel
from swarm_diloco.training.worker import Worker

TEXT_FOLDER = "text"  # of the run's folder: encoded text, which can be made again
TOKENIZER_FOLDER = "tokenizer"  # of the run's files
TIMEOUT_STATUS = 124  # as timeout(1) has it: the client stopped in the middle of writing θ
SEED_BYTES = 6  # of the run id: all workers order the text alike


@dataclass(frozen=True, slots=True)
class TrainerArguments:
    """The command line. The first two are open file descriptors."""

    channel: int
    memory: int
    folder: Path
    device: str | None  # None: the fastest that is there
    threads: int
    micro_batch: int | None  # None: what fits


def read_arguments(arguments: Sequence[str]) -> TrainerArguments:
    parser = argparse.ArgumentParser(prog="swarm_diloco_client.trainer")
    parser.add_argument("channel", type=int)
    parser.add_argument("memory", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--micro-batch", type=int)
    found = parser.parse_args(arguments)
    return TrainerArguments(found.channel, found.memory, found.folder, found.device, found.threads, found.micro_batch)


def main(arguments: Sequence[str]) -> int:
    """Train until told to stop or until the client is gone. Returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the client decides when training ends
    settings = read_arguments(arguments)
    torch.set_num_threads(settings.threads)
    with Channel(socket.socket(fileno=settings.channel)) as channel:
        try:
            worker, data = _prepare(settings, channel)
        except SwarmDilocoError as error:
            channel.send(Failed(reason=str(error)))
            return error.exit_status
        try:
            with data:
                worker.run()
        except SwarmDilocoError as error:  # the worker has told the client why
            return error.exit_status
        except TimeoutError:
            return TIMEOUT_STATUS
    return 0


def _prepare(settings: TrainerArguments, channel: Channel) -> tuple[Worker, TrainingData]:
    """Everything that a worker needs, made from the run's folder. Raises SwarmDilocoError."""
    folder = RunFolder(settings.folder)
    manifest = folder.read_manifest()
    shared = SharedModel.attach(settings.memory)
    shared.close()
    device = choose_device(settings.device)
    model = build_model(folder.file(manifest.file(MODEL_CONFIG)), parameters=manifest.model.parameters)
    check_model(
        model, vocabulary_size=manifest.tokenizer.vocabulary_size, sequence_length=manifest.inner.sequence_length
    )
    layout = layout_of(model, manifest.schedule.fragments)
    published = read_file(folder.file(manifest.file(MODEL_LAYOUT)), limit_bytes=MAX_LAYOUT_BYTES)
    if layout.encode() != published:
        raise ModelError("this version of transformers builds the run's model with other parameters; update it")
    model.to(device.device)
    micro_batch = settings.micro_batch or choose_micro_batch(model, manifest.inner, free_bytes(device.device))
    data = TrainingData(
        manifest.data,
        folder.path / TEXT_FOLDER,
        load_tokenizer(folder.files / TOKENIZER_FOLDER),
        sequence_length=manifest.inner.sequence_length,
        seed=int.from_bytes(manifest.run_id[:SEED_BYTES]),
        fetch=channel.fetch,
        announce=channel.announce,
        while_waiting=channel.raise_if_stopping,
    )
    worker = Worker(
        local=LocalModel(model, layout, shared),
        inner_loop=InnerLoop(model, manifest.inner, device, micro_batch),
        data=data,
        channel=channel,
        schedule=manifest.schedule,
        checkpoint=Checkpoint(folder.checkpoint),
        evaluation_tokens=manifest.evaluation.tokens,
    )
    return worker, data


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
