"""One exchange among many peers in virtual time: whether all end up with the same mean, and how near to the floor."""

import asyncio
import tempfile
from pathlib import Path

import numpy as np
from blake3 import blake3
from made_up_vectors import fill, largest_error
from one_exchange import OneExchange, Vector, rules_of

from swarm_diloco.network.identity import Identity
from swarm_diloco.network.simulated_network import LinkSettings, SimulatedNetwork, SimulatedWorld, run_virtual

NUM_PEERS = 64
NUM_VALUES = 2**20
PART_VALUES = NUM_VALUES // NUM_PEERS // 2
CODECS = ("e3m0", "int8")
LINK = LinkSettings(latency_seconds=0.015, up_bytes_per_second=20e6 / 8, down_bytes_per_second=20e6 / 8)
LIMIT_SECONDS = 600.0


def report() -> list[str]:
    rules = rules_of(bytes(32), NUM_VALUES, *CODECS, PART_VALUES)
    encoded_bytes = sum(form.encoded_bytes(NUM_VALUES) for form in (rules.upload, rules.download))
    floor_bytes = (NUM_PEERS - 1) / NUM_PEERS * encoded_bytes
    seconds, networks, means = 0.0, list[SimulatedNetwork](), list[Vector]()

    async def scenario(world: SimulatedWorld) -> None:
        nonlocal seconds, networks, means
        networks = [world.network(Identity.from_seed(bytes([index]) * 32), LINK) for index in range(NUM_PEERS)]
        members = [network.peer for network in networks]
        exchanges = [
            OneExchange(network, rules, members, folder / network.peer, limit_seconds=LIMIT_SECONDS)
            for network in networks
        ]
        for exchange in exchanges:
            await exchange.open()
        began_at = asyncio.get_running_loop().time()
        await asyncio.gather(*(exchange.run([vector_of(index)]) for index, exchange in enumerate(exchanges)))
        seconds = asyncio.get_running_loop().time() - began_at
        means = await asyncio.gather(*(exchange.take() for exchange in exchanges))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_virtual(scenario, seed=1, limit_seconds=LIMIT_SECONDS)
    num_means = len({blake3(mean.view(np.uint8).data).digest() for mean in means})
    sent = [network.sent_bytes / 1e6 for network in networks]
    return [
        f"{NUM_PEERS} peers in virtual time, {NUM_VALUES:,} values, {' up, '.join(CODECS)} down, 20 Mbit/s each way, "
        f"60 ms round trips: {seconds:.1f} s,",
        f"{floor_bytes * 8 / 20e6:.1f} s if the lines were never idle. Sent by a peer: {sum(sent) / len(sent):.3f} MB "
        f"({min(sent):.3f} to {max(sent):.3f}), by the formula {floor_bytes / 1e6:.3f} MB.",
        f"Replicas equal: {'yes' if num_means == 1 else 'NO'}. Largest error: {largest_error(means[0], NUM_PEERS):.1e} "
        "of a contribution's standard deviation.",
    ]


def vector_of(index: int) -> Vector:
    vector = np.empty(NUM_VALUES, np.float32)
    fill(vector, index)
    return vector


if __name__ == "__main__":
    print("\n".join(report()))
