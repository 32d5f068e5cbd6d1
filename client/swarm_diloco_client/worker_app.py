"""`join`: from an invite to a worker of the run, until told to stop."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from swarm_diloco.errors import ModelError, PeerUnreachable
from swarm_diloco.invite import Invite
from swarm_diloco.network.hivemind_network import HivemindNetwork
from swarm_diloco.network.identity import Identity
from swarm_diloco.rounds.engine import Engine
from swarm_diloco.run_folder import RunFolder
from swarm_diloco_bootstrap.address_book import AddressBook
from swarm_diloco_bootstrap.announcing import Announcer
from swarm_diloco_bootstrap.reporting import Reporter
from swarm_diloco_bootstrap.runtime_folder import runtime_folder
from swarm_diloco_bootstrap.signals import StopRequest
from swarm_diloco_bootstrap.taking_part import TakingPart
from swarm_diloco_client.contributing import Contributor
from swarm_diloco_client.entering import EnteredRun, enter_run
from swarm_diloco_client.run_fetching import bootstrap_peers, bootstrap_places
from swarm_diloco_client.supervising import keep_training
from swarm_diloco_client.trainer_process import TrainerProcess, TrainerSettings

Say = Callable[[str], None]

REACH_SECONDS = 10.0
OUTCOME_SECONDS = 5.0  # for a round that has a plan to be decided when we leave
IDENTITY_FILE = "identity.key"  # of the home


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What the volunteer says."""

    home: Path
    listen: Sequence[str] = ()  # multiaddrs; empty: everywhere, at `port`
    port: int = 0  # 0: any
    announce: Sequence[str] = ()
    client_mode: bool = False  # cannot be dialled and does not try
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    max_rounds: int | None = None  # leave after so many more


async def run_worker(invite: Invite, options: WorkerOptions, stop: StopRequest, *, say: Say) -> None:
    """Train for the run of `invite` until told to stop. Raises SwarmDilocoError, one line each."""
    torch.set_num_threads(1)  # this process sums and encodes; the machine's cores are the trainer's
    check_device(options.trainer.device)
    identity_path = options.home / IDENTITY_FILE
    identity = Identity.load_or_create(identity_path)
    identity.lock(identity_path)
    say(f"this peer is {identity.peer} (its key: {identity_path})")
    folder = RunFolder.of_run(options.home, invite.run_id)
    book = AddressBook(folder.peers, invite.run_id)

    def donors() -> list[str]:
        known = dict.fromkeys([*bootstrap_peers(invite), *book.records])
        return [peer for peer in known if peer != identity.peer]

    async with _joined(identity, identity_path, invite, options, book, is_known_run=folder.exists(), say=say) as (
        network,
        is_reachable,
    ):
        for peer, places in bootstrap_places(invite).items():
            network.remember(peer, places)
        book.make_known(network)
        run = await enter_run(network, invite, folder, donors, say=say)
        say(f"at round {run.follower.replica.round}, starting to train")
        engine = Engine(
            network,
            identity,
            run.follower.rules,
            run.follower,
            folder.votes,
            trains=True,
            is_reachable=is_reachable,
            remembered=donors,
        )
        announcer = Announcer(network, identity, run.follower, book, role="worker", is_reachable=is_reachable)
        await _take_part(run, engine, announcer, network, options, stop, say=say)


async def _take_part(
    run: EnteredRun,
    engine: Engine,
    announcer: Announcer,
    network: HivemindNetwork,
    options: WorkerOptions,
    stop: StopRequest,
    *,
    say: Say,
) -> None:
    contributor = Contributor(engine, run.follower, run.shared, run.manifest, fetch=run.files.get, say=say)
    reporter = Reporter(
        run.folder,
        run.manifest,
        run.follower,
        engine,
        role="worker",
        say=say,
        own_loss=contributor.own_loss,
    )

    async def start() -> TrainerProcess:
        return await TrainerProcess.start(options.trainer, memory=run.shared.descriptor, folder=run.folder.path)

    part = TakingPart(
        engine=engine, announcer=announcer, reporter=reporter, died=network.died, max_rounds=options.max_rounds
    )
    await part.run(
        stop,
        work=lambda: contributor.run(lambda: keep_training(start, contributor.converse, say=say)),
        before_leaving=lambda: contributor.wait_for_outcome(OUTCOME_SECONDS),
    )


def check_device(name: str | None) -> None:
    """Before anything is fetched: a device that is not here will not come by trying again. Raises ModelError."""
    is_missing = {"cuda": not torch.cuda.is_available(), "mps": not torch.backends.mps.is_available()}
    if name is not None and is_missing.get(name, False):
        raise ModelError(f"PyTorch finds no device {name!r} on this machine; leave --device out, or give cpu")


@asynccontextmanager
async def _joined(
    identity: Identity,
    identity_path: Path,
    invite: Invite,
    options: WorkerOptions,
    book: AddressBook,
    *,
    is_known_run: bool,
    say: Say,
) -> AsyncIterator[tuple[HivemindNetwork, bool]]:
    """The network, and whether others can dial us. Who cannot be dialled starts again as a client: nobody will try."""

    def start(*, client_mode: bool, initial_peers: Sequence[str]) -> AbstractAsyncContextManager[HivemindNetwork]:
        return HivemindNetwork.start(
            identity,
            identity_path,
            run_id=invite.run_id,
            runtime_folder=runtime_folder(),
            listen=options.listen or [f"/ip4/0.0.0.0/tcp/{options.port}"],
            announce=options.announce,
            initial_peers=initial_peers,
            client_mode=client_mode,
        )

    known = list(dict.fromkeys([*invite.addresses, *book.dial_addresses()]))
    async with AsyncExitStack() as stack:
        try:
            network = await stack.enter_async_context(start(client_mode=options.client_mode, initial_peers=known))
        except PeerUnreachable as error:
            if not is_known_run:
                raise
            say(f"{error}\ngoing on from what is on this disk, and looking for the others all the while")
            yield await stack.enter_async_context(start(client_mode=options.client_mode, initial_peers=())), False
            return
        if options.client_mode:
            yield network, False
            return
        if await network.is_reachable(bootstrap_peers(invite)[0], timeout_seconds=REACH_SECONDS):
            say(f"others can reach this peer at {', '.join(network.addresses())}")
            yield network, True
            return
        say(
            "others cannot reach this peer, so it goes on as a client: it trains all the same, and reduces nothing. "
            "With a port forwarded to it and --port it would be a full member"
        )
        await stack.aclose()
        yield await stack.enter_async_context(start(client_mode=True, initial_peers=known)), False
