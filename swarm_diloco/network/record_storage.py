"""What this peer keeps of the run's DHT: some peers' signed records, each until it expires.

It stands in for hivemind's storage, in which an older value that is offered takes the newer one along when it expires,
a look-up writes into what is stored, and a key may vanish before the newest of its sub-keys does (all measured).
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hivemind.dht.storage import DictionaryDHTValue
from hivemind.utils.timed_storage import ValueWithExpiration

from swarm_diloco.network.discovery import MAX_SUBKEYS

Entry = tuple[bytes, float]  # value, when it expires on the wall clock


class RecordStorage:
    """Implements what hivemind's DHT uses of its own. Values are checked by the caller; here they are bounded.

    Reading gives copies, storing looks at the clock and at the value that is there, and nothing else.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._keys: dict[Any, dict[Any, Entry]] = {}

    def store(self, key: Any, value: bytes, expiration_time: float, subkey: Any = None) -> bool:
        """False for a value without a sub-key: no record is such a one."""
        return subkey is not None and self.store_subkey(key, subkey, value, expiration_time)

    def store_subkey(self, key: Any, subkey: Any, value: bytes, expiration_time: float) -> bool:
        """True if this record is here now, or one that expires later: a peer that hands over all that it has stops at
        the first False. A key that is full takes no further peer, so that nobody can push the others out.
        """
        records = self._keys.setdefault(key, {})
        self._drop_expired(records)
        held = records.get(subkey)
        if held is not None and held[1] >= expiration_time:
            return True
        if expiration_time < self._now() or (held is None and len(records) >= MAX_SUBKEYS):
            return False
        records[subkey] = value, expiration_time
        return True

    def get(self, key: Any) -> Any:
        """A dictionary of the key's records in a ValueWithExpiration, or None."""
        records = self._keys.get(key, {})
        self._drop_expired(records)
        return dictionary_of(records.items()) if records else None

    def items(self) -> Iterator[tuple[Any, Any]]:
        for key in list(self._keys):
            found = self.get(key)
            if found is not None:
                yield key, found

    def __contains__(self, key: Any) -> bool:
        return self.get(key) is not None

    def _drop_expired(self, records: dict[Any, Entry]) -> None:
        now = self._now()
        for subkey in [subkey for subkey, (_, expiration_time) in records.items() if expiration_time < now]:
            del records[subkey]


def dictionary_of(records: Iterable[tuple[Any, Entry]]) -> Any:
    """As hivemind sends it; it expires with the last of its records."""
    with DictionaryDHTValue().freeze() as dictionary:  # what has expired is not its affair
        for subkey, (value, expiration_time) in records:
            dictionary.store(subkey, value, expiration_time)
    return ValueWithExpiration(dictionary, dictionary.latest_expiration_time)
