"""Where everything of one run lies on a disk."""

from dataclasses import dataclass
from pathlib import Path

from swarm_diloco.diloco.fragments import ParameterLayout
from swarm_diloco.diloco.records import hash_of
from swarm_diloco.disk import read_file
from swarm_diloco.errors import DiskError
from swarm_diloco.manifest import MAX_MANIFEST_BYTES, MODEL_LAYOUT, FileEntry, Manifest
from swarm_diloco.rounds.settings import RunRules

OPERATOR_MANIFEST = "run.toml"
VOLUNTEER_MANIFEST = "manifest.toml"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Names under a run's folder. Making one touches nothing on the disk."""

    path: Path

    @classmethod
    def of_run(cls, home: Path, run_id: bytes) -> "RunFolder":
        """A volunteer's folder for the run, under the home of its client."""
        return cls(home / "runs" / run_id.hex()[:16])

    @classmethod
    def all_in(cls, home: Path) -> tuple["RunFolder", ...]:
        """The runs that a volunteer's home holds, by name."""
        runs = home / "runs"
        folders = sorted(runs.iterdir()) if runs.is_dir() else []
        return tuple(cls(folder) for folder in folders if cls(folder).exists())

    def exists(self) -> bool:
        return self.manifest.is_file()

    @property
    def manifest(self) -> Path:
        """run.toml where the operator made it, manifest.toml where it was fetched."""
        operator = self.path / OPERATOR_MANIFEST
        return operator if operator.is_file() else self.path / VOLUNTEER_MANIFEST

    @property
    def genesis(self) -> Path:
        """The encoded header of commit 0."""
        return self.path / "genesis"

    @property
    def log(self) -> Path:
        """A folder of headers, each under its round's number."""
        return self.path / "log"

    @property
    def parts(self) -> Path:
        """A folder of the results' parts, each under the hexadecimal hash of its bytes."""
        return self.path / "parts"

    @property
    def snapshots(self) -> Path:
        return self.path / "snapshots"

    def snapshot(self, round_: int) -> Path:
        """The folder of the global state after `round_`."""
        return self.snapshots / str(round_)

    @property
    def votes(self) -> Path:
        """What this identity promised and voted for."""
        return self.path / "votes"

    @property
    def peers(self) -> Path:
        """Addresses of peers met before."""
        return self.path / "peers"

    @property
    def checkpoint(self) -> Path:
        """A folder of what this worker keeps for itself."""
        return self.path / "checkpoint"

    @property
    def files(self) -> Path:
        """A folder of the files that the manifest names by hash."""
        return self.path / "files"

    def file(self, entry: FileEntry) -> Path:
        """Where the manifest's file lies; its path was checked when the entry was made, so it stays under files/."""
        return self.files.joinpath(*entry.path.split("/"))

    def read_manifest(self) -> Manifest:
        """Raises DiskError if there is none, ManifestError if it cannot be read."""
        if not self.exists():
            raise DiskError(f"{self.path} is not the folder of a run: it holds no {OPERATOR_MANIFEST}")
        return Manifest.parse(read_file(self.manifest, limit_bytes=MAX_MANIFEST_BYTES), name=str(self.manifest))

    def read_rules(self, manifest: Manifest) -> RunRules:
        """The run as rounds/ sees it, with the layout that lies in this folder. Raises DiskError, RecordError."""
        entry = manifest.file(MODEL_LAYOUT)
        data = read_file(self.file(entry), limit_bytes=entry.bytes)
        if hash_of(data).hex() != entry.blake3:
            raise DiskError(f"{self.file(entry)} is not the file that the manifest names; remove it and join again")
        return manifest.rules(ParameterLayout.decode(data, num_fragments=manifest.schedule.fragments))
