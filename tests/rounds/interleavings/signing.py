"""Signatures that cost next to nothing, for runs by the hundred thousand. Stated wherever they are used."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from swarm_diloco.diloco import records
from swarm_diloco.diloco.records import hash_of
from swarm_diloco.network.identity import Identity, is_signed_by


def replaced(stack: ExitStack, original: object, name: str, replacement: object) -> int:
    """Put `replacement` where any module of ours has `original` under `name`. Returns in how many."""
    count = 0
    for module_name, module in list(sys.modules.items()):
        is_ours = module_name.partition(".")[0] in ("swarm_diloco", "interleavings")
        if is_ours and module_name != "interleavings.mutants" and getattr(module, name, None) is original:
            stack.enter_context(patch.object(module, name, replacement))
            count += 1
    return count


@contextmanager
def cheap_signatures() -> Iterator[None]:
    """A hash keyed with the signer's name instead of Ed25519, checked at every place where a signature is checked.

    What we encode ourselves is not looked through for fields that no record may hold: that decides nothing either.
    """

    def sign(self: Identity, message: bytes) -> bytes:
        tag = hash_of(self.peer.encode() + message)
        return tag + tag

    def check(peer: str, message: bytes, signature: bytes) -> bool:
        tag = hash_of(peer.encode() + message)
        return signature == tag + tag

    with ExitStack() as stack:
        assert replaced(stack, is_signed_by, "is_signed_by", check) >= 3
        stack.enter_context(patch.object(Identity, "sign", sign))
        stack.enter_context(patch.object(records, "_check", lambda _: None))
        yield
