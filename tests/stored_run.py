"""A tiny run in a folder, with rounds that its bootstrap peer decided: made-up pseudo-gradients, real records."""

import json
from pathlib import Path

import torch

from swarm_diloco.diloco.ledger import (
    Commit,
    DataRange,
    Evaluation,
    Header,
    Kind,
    Member,
    PartRecord,
    Vote,
    digest_of,
    member_bitmap,
    vote_message,
)
from swarm_diloco.diloco.records import HASH_BYTES, hash_of
from swarm_diloco.network.identity import Identity
from swarm_diloco.rounds.log import Log
from swarm_diloco.rounds.replica import Replica
from swarm_diloco.rounds.snapshot import load_snapshot
from swarm_diloco_bootstrap.init import init
from swarm_diloco_bootstrap.init_options import InitOptions
from swarm_diloco_bootstrap.operator_folder import OperatorFolder

CONFIG = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "vocab_size": 257,
}
SETTINGS = {
    "inner.sequence_length": 32,
    "inner.batch_sequences": 2,
    "inner.warmup_tokens": 100,
    "inner.total_tokens": 100_000,
    "schedule.inner_steps": 5,
    "rounds.part_values": 1024,
    "data.shards": 2,
    "evaluation.tokens": 512,
    "run.purpose": "to be looked at",
    "run.contact": "somebody@example.org",
    "data.licence": "public domain",
}
WORKER = Identity.from_seed(bytes([7]) * 32)
WEIGHT = 64


def make_run(folder: Path) -> OperatorFolder:
    """A run of some thousand parameters over bytes."""
    folder.mkdir(parents=True)
    documents = [f"River {number} flows past hill {number * 7} to the town of {number * 13}." for number in range(300)]
    text, config = folder / "text.jsonl", folder / "config.json"
    text.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents))
    config.write_text(json.dumps(CONFIG))
    options = InitOptions(data=str(text), model=str(config), tokenizer="byte", settings=SETTINGS)
    return init(folder / "run", options).folder


def add_rounds(run: OperatorFolder, count: int) -> Replica:
    """Decide the next `count` rounds, as the bootstrap peer with one worker would. Returns the state after them."""
    manifest = run.read_manifest()
    rules = run.read_rules(manifest)
    log = Log(run.path, rules, run.genesis.read_bytes())
    replica = Replica(rules, torch.zeros(rules.layout.num_values), torch.zeros(rules.layout.num_values))
    load_snapshot(run.snapshot(0), replica)
    bootstrap = Identity.load(run.identity)
    for round_ in range(1, log.head.round + count + 1):
        if round_ > log.head.round:
            log.append(_decided(log, replica, bootstrap, round_))
        commit = log.commit(round_)
        replica.apply(commit, [log.parts.get(part.result_hash) or b"" for part in commit.parts])
    return replica


def _decided(log: Log, replica: Replica, bootstrap: Identity, round_: int) -> Header:
    rules = log.rules
    generator = torch.Generator().manual_seed(round_)
    hashes = []
    for size in rules.part_sizes(0):
        values = torch.randn(size, generator=generator) * 1e-3
        hashes.append(log.parts.hold(rules.download.encode(values)))
    log.parts.make_durable(hashes)
    log.parts.drop_held()
    ranges = (DataRange(0, 0, 2 * round_ - 2, 2 * round_),)
    members = (
        Member(bootstrap.peer, 0, 0, 0, True, (), bytes(HASH_BYTES)),
        Member(WORKER.peer, WEIGHT, WEIGHT * (round_ - 1), WEIGHT * round_, False, ranges, hash_of(b"knock")),
    )
    commit = Commit(
        run=rules.run_id,
        round=round_,
        fragment=0,
        prev=log.digest(round_ - 1),
        kind=Kind.NORMAL,
        base=replica.base(0),
        members=members,
        parts=tuple(PartRecord(0, part_hash, member_bitmap([1]), WEIGHT) for part_hash in hashes),
        next_due_ms=1500,
        wall_ms=1_800_000_000_000 + 1500 * round_,
        evaluation=(Evaluation("held-out", round_ - 1, 5_000_000 - 10_000 * round_, 496),),
    ).encode()
    message = vote_message(rules.run_id, round_, 0, digest_of(commit))
    return Header(commit, 0, (Vote(bootstrap.peer, bootstrap.sign(message)),))
