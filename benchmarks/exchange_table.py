"""What is measured of an exchange, and how it is shown: rows, their table, and the aims."""

import statistics
from dataclasses import dataclass, replace

from swarm_diloco.diloco.codec import codec

MIB = 2**20
CODECS = {  # name -> upload, download
    "float32": ("float32", "float32"),
    "float16": ("float16", "float16"),
    "int8": ("int8", "int8"),
    "e3m0": ("e3m0", "e3m0"),
    "e3m0/int8": ("e3m0", "int8"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    system: str
    num_peers: int
    num_values: int
    codec: str

    @property
    def wire_bytes(self) -> float:
        """What the algorithm has one peer send, and receive."""
        upload, download = (codec(name, 256).encoded_bytes(self.num_values) for name in CODECS[self.codec])
        return (self.num_peers - 1) / self.num_peers * (upload + download)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One repeat: seconds to the last peer's end, CPU of all peers, memory and bytes of the mean peer."""

    seconds: float
    python_seconds: float
    p2pd_seconds: float
    memory_bytes: float
    sent_bytes: float | None  # as this project's code counts
    received_bytes: float | None
    tcp_sent_bytes: float
    tcp_received_bytes: float
    is_equal: bool
    error: float
    group: int


def line(row: Row, repeats: list[Measured]) -> str:
    seconds = [one.seconds for one in repeats]

    def middle(name: str, digits: int, scale: float = 1.0) -> str:
        values = [getattr(one, name) for one in repeats]
        return "-" if None in values else f"{statistics.median(values) / scale:.{digits}f}"

    own, tcp = ("sent_bytes", "received_bytes"), ("tcp_sent_bytes", "tcp_received_bytes")
    cells = [
        row.system,
        str(row.num_peers),
        f"{row.num_values / 1e6:.0f}M",
        row.codec,
        f"{statistics.median(seconds):.2f} ({min(seconds):.2f}–{max(seconds):.2f})",
        middle("python_seconds", 2),
        middle("p2pd_seconds", 2),
        f"{row.wire_bytes / 1e6:.1f}",
        " / ".join(middle(name, 1, 1e6) for name in own),
        " / ".join(middle(name, 1, 1e6) for name in tcp),
        middle("memory_bytes", 0, MIB),
        "yes" if all(one.is_equal for one in repeats) else "no",
        f"{max(one.error for one in repeats):.1e}",
    ]
    return "| " + " | ".join(cells) + " |"


COLUMNS = (
    "system", "peers", "values", "codec", "seconds (least–most)", "Python CPU s", "p2pd CPU s", "formula MB",
    "sent / received MB", "TCP sent / received MB", "peak MiB", "equal", "error",
)  # fmt: skip
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"
LEGEND = """
CPU seconds are those of all peers together, "Python" with all of a peer's processes but p2pd; bytes and memory are one
peer's. Formula: (M−1)/M × (upload-encoded + download-encoded size). Sent and received as this project's code counts
them, over TCP as the kernel does, encryption and framing included. Peak memory: above the idle process before its first
vector, the vector included (of the averager: its own process; p2pd's is in no column). This project's vector is given
up once it is encoded, and the mean is decoded when all hold all of it. Error: the largest against the float64 mean, in
a contribution's standard deviations. The averager's 8-bit codecs fail on numpy 2.4; gloo has neither those nor
encryption."""


def summary(results: dict[Row, list[Measured]]) -> list[str]:
    """The aims, each with what was found."""
    lines = []
    for name, attribute, aim in (("Python CPU", "python_seconds", 0.6), ("peak memory", "memory_bytes", 0.5)):
        ratios = {}
        for row, repeats in results.items():
            other = results.get(replace(row, system="averager"))
            if row.system == "butterfly" and other:
                ratios[row] = _median(repeats, attribute) / _median(other, attribute)
        if ratios:
            middle = statistics.median(ratios.values())
            each = ", ".join(f"{r.num_peers}×{r.num_values // 10**6}M {r.codec} {x:.2f}" for r, x in ratios.items())
            lines.append(
                f"- {name} over the averager's: median {middle:.2f}, aim {aim}: {_word(middle <= aim)} ({each})"
            )
    ours = {row: repeats for row, repeats in results.items() if row.system == "butterfly"}
    if ours:
        off = max(
            abs(_median(repeats, attribute) / row.wire_bytes - 1)
            for row, repeats in ours.items()
            for attribute in ("sent_bytes", "received_bytes", "tcp_sent_bytes", "tcp_received_bytes")
        )
        lines.append(f"- bytes each way, at most off the formula: {off:.1%}, aim 3 %: {_word(off <= 0.03)}")
        unequal = [row for row, repeats in ours.items() if not all(one.is_equal for one in repeats)]
        lines.append(f"- replicas equal in all of this project's rows: {_word(not unequal)}")
    return lines


def _median(repeats: list[Measured], attribute: str) -> float:
    return statistics.median(getattr(one, attribute) for one in repeats)


def _word(is_met: bool) -> str:
    return "met" if is_met else "MISSED"
