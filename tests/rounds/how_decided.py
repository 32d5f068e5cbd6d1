"""How a round was decided, in the words of the schedules' reports."""

from swarm_diloco.diloco.ledger import Header


def how_decided(header: Header) -> str:
    """Its kind, its ballot if the council decided, and how much of it took more than one attempt."""
    commit = header.commit()
    words = [f"{'degraded ' if header.degraded else ''}{commit.kind.name.lower()}"]
    if not header.degraded:
        words.append(f"ballot {header.ballot}")
    attempts = [part.attempt for part in commit.parts]
    if any(attempts):
        words.append(f"{sum(map(bool, attempts))} of {len(attempts)} parts at attempt {max(attempts)}")
    return ", ".join(words)
