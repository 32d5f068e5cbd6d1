"""Everything that can go wrong in the world, as one tree. A docstring says what happened and what to do.

    SwarmDilocoError
    ├── ManifestError      run.toml or a setting in it
    ├── InviteError        the pasted invite
    ├── IdentityError      a key file
    ├── DiskError          a folder or file of ours
    ├── DataError          training or held-out text
    ├── ModelError         model, tokenizer or device
    ├── RecordError        a commit, certificate or message that does not verify
    ├── StateError         this replica is not the swarm's
    ├── RunRefused         the swarm will not have this client
    └── NetworkError
        ├── PeerUnreachable    nobody answers there
        ├── StreamLost         the other side went away
        └── StreamTimeout      the other side is silent

A wrong argument is a ValueError; our own mistake is an AssertionError; neither stands here.
"""


class SwarmDilocoError(Exception):
    """Something that a user or operator can act on. `exit_status` is what a program of ours ends with."""

    exit_status = 1


class ManifestError(SwarmDilocoError):
    """A setting is missing, unknown or out of range. The message names the key, the rule and the value got."""

    exit_status = 10


class InviteError(SwarmDilocoError):
    """The invite is damaged or for something else. Paste it again, whole."""

    exit_status = 11


class IdentityError(SwarmDilocoError):
    """A key file is unreadable, damaged or in use. Restore it from a backup or stop the other program."""

    exit_status = 12


class DiskError(SwarmDilocoError):
    """A folder cannot be used or a file of ours is damaged. The last good state is untouched."""

    exit_status = 13


class DataError(SwarmDilocoError):
    """Text is missing, empty, unreadable or not what the manifest names by hash."""

    exit_status = 14


class ModelError(SwarmDilocoError):
    """A model, tokenizer or device cannot do what the run asks."""

    exit_status = 15


class RecordError(SwarmDilocoError):
    """Bytes that claim to be a record of this run are not: wrong form, hash, signature or chain."""

    exit_status = 16


class StateError(SwarmDilocoError):
    """This replica's parameters differ from the swarm's again and again. Check the machine's memory and the program."""

    exit_status = 17


class RunRefused(SwarmDilocoError):
    """The swarm does not admit this client: another protocol, manifest or a full group."""

    exit_status = 18


class NetworkError(SwarmDilocoError):
    """The network did not do what was asked."""

    exit_status = 20


class PeerUnreachable(NetworkError):
    """No connection to the peer could be made in time."""

    exit_status = 21


class StreamLost(NetworkError):
    """The stream ended before everything expected had come."""

    exit_status = 22


class StreamTimeout(NetworkError):
    """The other side neither sent nor took bytes for too long."""

    exit_status = 23
