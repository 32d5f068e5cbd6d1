"""What the demonstration calls a success, and how it shows itself."""

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console

from swarm_diloco.errors import DiskError
from swarm_diloco_bootstrap.status_file import PeerStatus
from swarm_diloco_client.demo import MARK, prepare_folder
from swarm_diloco_client.demo_peers import environment, find_invite
from swarm_diloco_client.demo_report import (
    Agreement,
    DemoResult,
    Requirements,
    checks,
    data_parallel_bytes,
    summary,
)
from swarm_diloco_client.demo_screen import DemoScreen
from swarm_diloco_client.demo_view import KILLED, STARTING, TRAINING, DemoView, PeerRow, table

REQUIRED = Requirements(drop=2.0, margin=0.3)
NAMES = ("bootstrap", "worker-1", "worker-3", "worker-4")


def status(round_: int, *, digest: str = "d1", state_hash: str = "a1") -> PeerStatus:
    return PeerStatus(
        pid=1,
        peer="peer",
        role="worker",
        run_id="00",
        name="demo",
        round=round_,
        digest=digest * 16,
        state_hash=state_hash * 16,
        members=["peer"],
        workers=["peer"],
        tokens=300_000,
        own_tokens=100_000,
        round_tokens=20_000,
        round_seconds=4.0,
        losses={"held-out": [8, 5.25]},
        own_loss=5.5,
        sent_bytes=4_000_000,
        received_bytes=5_000_000,
        updated_at_ms=0,
    )


def agreement_of(*told: tuple[str, PeerStatus]) -> Agreement:
    agreement = Agreement()
    for name, what in told:
        agreement.add(name, what)
    return agreement


@pytest.fixture
def good() -> DemoResult:
    return DemoResult(
        parameters=1_000_000,
        batch_tokens=1_000,
        num_workers=3,
        rounds=30,
        tokens=300_000,
        tokens_by_name={"worker-1": 100_000, "worker-2": 40_000, "worker-3": 100_000, "worker-4": 60_000},
        loss_start=7.6,
        loss_end=4.6,
        unigram_entropy=6.3,
        loss_exported=4.6,
        statuses={name: status(30) for name in NAMES},
        live=NAMES,
        agreement=agreement_of(*((name, status(30)) for name in NAMES)),
        stored_matches=True,
        killed="worker-2",
        killed_at_round=12,
        joined="worker-4",
        left_behind=(),
    )


def test_a_good_demonstration_passes_every_check(good: DemoResult) -> None:
    assert [check.line for check in checks(good, REQUIRED) if not check.held] == []


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        ({"loss_end": 5.7, "loss_exported": 5.7}, "the held-out loss fell"),
        ({"unigram_entropy": 4.8}, "it ends below the text's unigram entropy"),
        ({"loss_end": float("nan"), "loss_exported": float("nan")}, "the held-out loss fell"),
        (
            {"agreement": agreement_of(*((name, status(30)) for name in NAMES[1:]))},
            "all live peers have one digest and one state hash",
        ),
        (
            {"agreement": agreement_of(*((n, status(30)) for n in NAMES), ("worker-2", status(30, state_hash="b2")))},
            "all live peers have one digest and one state hash",
        ),
        (
            {"agreement": agreement_of(*((n, status(30)) for n in NAMES), ("worker-2", status(30, digest="e2")))},
            "all live peers have one digest and one state hash",
        ),
        ({"stored_matches": False}, "all live peers have one digest and one state hash"),
        ({"killed_at_round": 30}, "a worker's death did not stop the swarm"),
        (
            {"tokens_by_name": {"worker-1": 1, "worker-2": 1, "worker-3": 1, "worker-4": 0}},
            "a new worker's training was taken up",
        ),
        (
            {"tokens_by_name": {"worker-1": 1, "worker-2": 0, "worker-3": 1, "worker-4": 1}},
            "every worker trained",
        ),
        ({"loss_exported": 4.7}, "the exported model is the swarm's"),
        ({"left_behind": ("worker-3's p2pd",)}, "everything ended within seconds and left nothing behind"),
    ],
)
def test_each_thing_that_must_hold_is_checked(good: DemoResult, change: dict[str, object], claim: str) -> None:
    failed = [check.claim for check in checks(dataclasses.replace(good, **change), REQUIRED) if not check.held]
    assert claim in failed


def test_a_difference_of_states_is_remembered_though_the_peers_agree_later(good: DemoResult) -> None:
    agreement = agreement_of(("worker-1", status(29)), ("worker-3", status(29, state_hash="ff")))
    for name in NAMES:
        agreement.add(name, status(30))
    found = checks(dataclasses.replace(good, agreement=agreement), REQUIRED)
    assert any("round 29" in check.facts for check in found if not check.held)


def test_data_parallel_bytes_follow_the_ring_all_reduce() -> None:
    assert data_parallel_bytes(1_000_000, 4, steps=1) == 6_000_000  # 3/4 of 4 MB out in each of its two halves
    assert data_parallel_bytes(1_000_000, 2, steps=10) == 40_000_000


def test_the_summary_states_bytes_and_their_ratio(good: DemoResult) -> None:
    text = "\n".join(summary(good))
    assert "30 rounds, 300,000 tokens" in text
    assert "sent    4.0 MB  received    5.0 MB" in text
    assert "100 steps: data parallel 533.3 MB, 107 times as much" in text  # 2 · 4 · 1e6 · 2/3 · 100 against 5 MB


def view(*rows: PeerRow) -> DemoView:
    return DemoView(elapsed_seconds=61, remaining_seconds=120, rows=rows, num_differing=0)


def test_the_table_shows_every_peer() -> None:
    rows = (
        PeerRow(name="worker-1", state=TRAINING, status=status(7)),
        PeerRow(name="worker-2", state=KILLED, status=status(3)),
        PeerRow(name="worker-4", state=STARTING, status=None),
    )
    console = Console(file=io.StringIO(), width=120)
    console.print(table(view(*rows)))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for fact in ("worker-1", "training", "d1d1d1d1", "a1a1a1a1", "5.500", "killed", "starting", "120 s to go", "5.250"):
        assert fact in text


def test_a_pipe_gets_one_line_a_round() -> None:
    written = io.StringIO()
    with DemoScreen(Console(file=written, width=80)) as screen:
        for round_ in (0, 1, 1, 2, 2):
            screen.show(view(PeerRow(name="worker-1", state=TRAINING, status=status(round_))))
    lines = written.getvalue().splitlines()
    assert ["round   1" in lines[0], "round   2" in lines[1], len(lines)] == [True, True, 2]


def test_only_an_earlier_demonstrations_folder_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    prepare_folder(folder)
    (folder / "model").mkdir()
    prepare_folder(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["logs", MARK]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    with pytest.raises(DiskError, match="no demonstration made"):
        prepare_folder(tmp_path / "other")
    assert (tmp_path / "other" / "thesis.txt").exists()


def test_peers_get_one_thread_and_none_of_our_own_settings() -> None:
    made = environment({"PATH": "/bin", "SWARM_DILOCO_HOME": "/mine", "XDG_RUNTIME_DIR": "/run/me"}, Path("/sockets"))
    assert "SWARM_DILOCO_HOME" not in made
    assert (made["PATH"], made["OMP_NUM_THREADS"], made["XDG_RUNTIME_DIR"]) == ("/bin", "1", "/sockets")


def test_the_invite_is_found_in_the_line_to_paste() -> None:
    assert find_invite("  swarm-diloco join sd1abc-_9\n") == "sd1abc-_9"
    assert find_invite("others join with:") is None
