"""The operator's folder of one run: a run's folder with the keys and the port."""

import errno
import socket
from dataclasses import dataclass
from pathlib import Path

from swarm_diloco.diloco.ledger import MAX_HEADER_BYTES, Header
from swarm_diloco.diloco.records import hash_of
from swarm_diloco.disk import read_file
from swarm_diloco.errors import DiskError, ManifestError, NetworkError, RecordError
from swarm_diloco.genesis import verify_genesis
from swarm_diloco.manifest import MAX_MANIFEST_BYTES, Manifest
from swarm_diloco.run_folder import RunFolder
from swarm_diloco.settings_file import SettingsFile, write_table

BOOTSTRAP_COMMENTS = {
    "port": "TCP port of the bootstrap peer, chosen free at init. Every invite names it: keep it, and open it.",
    "announce": "Addresses to announce besides the machine's own, such as /dns4/host.example/tcp/4000.",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class BootstrapSettings:
    """bootstrap.toml: what the operator may change between two starts; no other peer reads it."""

    port: int
    announce: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65_535:
            raise ValueError(f"bootstrap.port must be from 1 to 65535, not {self.port}")
        for address in self.announce:
            if (
                not address.startswith("/")
                or not address.isascii()
                or "/tcp/0" in f"{address}/".replace("/tcp/0/", "/tcp/0")
            ):
                raise ValueError(f"bootstrap.announce must be multiaddrs with their port, not {address!r}")


@dataclass(frozen=True, slots=True)
class OperatorFolder(RunFolder):
    """What `init` makes and `bootstrap` runs."""

    @property
    def operator_key(self) -> Path:
        """The operator's private key, 0600: signs the genesis. The running bootstrap peer does not need it."""
        return self.path / "operator.key"

    @property
    def identity(self) -> Path:
        """The bootstrap peer's private key, 0600."""
        return self.path / "identity.key"

    @property
    def settings_file(self) -> Path:
        return self.path / "bootstrap.toml"

    def read_settings(self) -> BootstrapSettings:
        """Raises DiskError, ManifestError."""
        data = read_file(self.settings_file, limit_bytes=MAX_MANIFEST_BYTES)
        file = SettingsFile(data, str(self.settings_file), {"bootstrap": BootstrapSettings})
        file.check_tables()
        return file.read("bootstrap", BootstrapSettings)

    def open(self) -> tuple[Manifest, Header]:
        """The run's manifest and genesis, both verified.

        Raises ManifestError naming the way out if run.toml was edited after init, DiskError if this is no such folder
        or the genesis is damaged.
        """
        if not self.exists() or not self.genesis.is_file():
            raise DiskError(f"{self.path} is not an operator's folder; make one: swarm-diloco init {self.path}")
        data = read_file(self.manifest, limit_bytes=MAX_MANIFEST_BYTES)
        genesis = read_file(self.genesis, limit_bytes=MAX_HEADER_BYTES)
        try:
            signed_run = Header.decode(genesis).commit().run
        except RecordError as error:
            raise DiskError(f"{self.genesis} is damaged ({error}); restore it from a backup") from error
        if signed_run != hash_of(data):
            raise ManifestError(
                f"{self.manifest} was edited after init, which makes it another run that no peer of this one meets. "
                f"Put the old text back, or start the new run: swarm-diloco init --config {self.manifest} NEW_DIR"
            )
        manifest = Manifest.parse(data, name=str(self.manifest))
        try:
            return manifest, verify_genesis(genesis, manifest)
        except RecordError as error:
            raise DiskError(f"{self.genesis} is damaged ({error}); restore it from a backup") from error


def write_bootstrap_settings(settings: BootstrapSettings) -> bytes:
    """bootstrap.toml, with its comments."""
    heading = "# Settings of the bootstrap peer alone. They may be changed between two starts.\n\n"
    return (heading + write_table("bootstrap", settings, BOOTSTRAP_COMMENTS)).encode()


def free_port(wanted: int | None = None) -> int:
    """`wanted`, or a port of the system's choice, on which nothing listens now. Raises NetworkError."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", wanted or 0))
        except OSError as error:
            reason = "it is in use" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
            raise NetworkError(f"cannot use port {wanted}: {reason}; choose another with --port") from error
        port: int = probe.getsockname()[1]
        return port
