from dataclasses import replace
from pathlib import Path

import pytest

from swarm_diloco.errors import DiskError
from swarm_diloco_bootstrap.status_file import STATUS_FILE, PeerStatus, read_status, round_line

STATUS = PeerStatus(
    pid=1,
    peer="12D3KooWa",
    role="worker",
    run_id="ab" * 32,
    name="a run",
    round=12,
    digest="cd" * 32,
    state_hash="ef" * 32,
    members=["12D3KooWa", "12D3KooWb", "12D3KooWc"],
    workers=["12D3KooWa", "12D3KooWb"],
    tokens=120_000,
    own_tokens=60_000,
    round_tokens=10_000,
    round_seconds=4.0,
    losses={"held-out": [8, 3.25]},
    own_loss=3.5,
    sent_bytes=1_500_000,
    received_bytes=2_500_000,
    updated_at_ms=1_700_000_000_000,
)


def test_what_a_peer_writes_others_read(tmp_path: Path):
    STATUS.write(tmp_path)
    assert read_status(tmp_path) == STATUS


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"pid": 1}', "\xff"])
def test_a_damaged_file_is_named(content: str, tmp_path: Path):
    (tmp_path / STATUS_FILE).write_text(content)
    with pytest.raises(DiskError, match=STATUS_FILE):
        read_status(tmp_path)


def test_a_round_is_one_line_with_units():
    assert round_line(STATUS) == (
        "round 12  3 members, 2 trained  4.0 s  own loss 3.5000  held-out loss 3.2500 at round 8  2,500 tokens/s  "
        "sent 1.50 MB, received 2.50 MB  cdcdcdcdcdcdcdcd"
    )


def test_what_is_not_known_is_not_in_the_line():
    status = replace(STATUS, round_seconds=None, own_loss=None, losses={})
    assert round_line(status) == ("round 12  3 members, 2 trained  sent 1.50 MB, received 2.50 MB  cdcdcdcdcdcdcdcd")
