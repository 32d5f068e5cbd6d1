"""A peer's copy of the global state, and how a decided round changes it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from blake3 import blake3
from torch import Tensor

from swarm_diloco.diloco.ledger import Commit, Kind
from swarm_diloco.diloco.outer_optimizer import outer_step_
from swarm_diloco.diloco.records import HASH_BYTES
from swarm_diloco.errors import RecordError, StateError
from swarm_diloco.rounds.settings import RunRules


def fragment_base(theta: Tensor, momentum: Tensor) -> bytes:
    """H(θ_f ‖ m_f): blake3 of the fragment's float32 values, little-endian, parameters in order of sorted names."""
    return blake3(_bytes_of(theta)).update(_bytes_of(momentum)).digest()


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.view(torch.uint8).numpy().data


class Replica:
    """θ and the outer momentum m: flat float32 tensors [num_values] on the CPU, owned by the caller, changed in place.

    `guard(fragment)` encloses every write, so that a reader in another process sees no torn fragment.
    """

    def __init__(
        self,
        rules: RunRules,
        theta: Tensor,
        momentum: Tensor,
        guard: Callable[[int], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        for tensor in (theta, momentum):
            assert tensor.dtype is torch.float32
            assert tensor.shape == (rules.layout.num_values,)
        self.rules = rules
        self.theta = theta
        self.momentum = momentum
        self.round = -1  # nothing loaded
        self.applied = [0] * rules.num_fragments  # results of each fragment so far; voids do not count
        self._guard = guard
        self._bases: list[bytes] = []

    def load(self, theta: Tensor, momentum: Tensor, *, round_: int, applied: Sequence[int]) -> None:
        """Take a snapshot's state, copied."""
        for fragment in range(self.rules.num_fragments):
            where = self.rules.fragment_slice(fragment)
            with self._guard(fragment):
                self.theta[where].copy_(theta[where])
                self.momentum[where].copy_(momentum[where])
        self.applied = list(applied)
        self._bases = [self._compute_base(fragment) for fragment in range(self.rules.num_fragments)]
        self.round = round_

    def base(self, fragment: int) -> bytes:
        """The fragment's base as computed after its last change."""
        return self._bases[fragment]

    def check_genesis(self, genesis: Commit) -> None:
        """Raises StateError if the loaded θ_0 is not the one that the operator signed."""
        signed = [genesis.base[start : start + HASH_BYTES] for start in range(0, len(genesis.base), HASH_BYTES)]
        if signed != self._bases:
            raise StateError("the first snapshot is not the one that the genesis names")

    def check_base(self, commit: Commit) -> None:
        """Raises StateError if the commit was made for another state than this one."""
        if commit.base != self.base(commit.fragment):
            raise StateError(
                f"round {commit.round}: this replica's state of fragment {commit.fragment} is not the swarm's "
                f"({self.base(commit.fragment).hex()[:16]} here, {commit.base.hex()[:16]} in the commit)"
            )

    def apply(self, commit: Commit, parts: Sequence[bytes]) -> None:
        """Take the outer step of a decided commit whose parts' hashes were checked. Raises RecordError, StateError.

        Either all parts decode and the fragment changes, or nothing does.
        """
        assert commit.round == self.round + 1
        self.check_base(commit)
        if commit.kind is Kind.NORMAL:
            where = self.rules.fragment_slice(commit.fragment)
            delta = self._decode(commit.fragment, parts)
            with self._guard(commit.fragment):
                outer_step_(
                    self.theta[where],
                    self.momentum[where],
                    delta,
                    self.rules.outer,
                    self.applied[commit.fragment],
                )
            self.applied[commit.fragment] += 1
            self._bases[commit.fragment] = self._compute_base(commit.fragment)
        self.round = commit.round

    def _decode(self, fragment: int, parts: Sequence[bytes]) -> Tensor:
        slices = self.rules.part_slices(fragment)
        if len(parts) != len(slices):
            raise RecordError(f"fragment {fragment}: {len(parts)} parts where {len(slices)} are due")
        delta = torch.empty(slices[-1].stop, dtype=torch.float32)
        for where, part in zip(slices, parts, strict=True):
            delta[where] = self.rules.download.decode(part, where.stop - where.start)
        return delta

    def _compute_base(self, fragment: int) -> bytes:
        where = self.rules.fragment_slice(fragment)
        return fragment_base(self.theta[where], self.momentum[where])

    def state_hash(self) -> bytes:
        """blake3 of all of θ, then all of m."""
        return fragment_base(self.theta, self.momentum)
