"""Vectors that any process can make again in pieces, so that a mean can be checked without holding all of them."""

import ctypes
import sys

import numpy as np
import numpy.typing as npt

PIECE_VALUES = 2**16  # small, so that making and checking leaves no mark on the allocator
NUM_PLACES = 2**16
NUM_CHECKED = 48
STANDARD_DEVIATION = 0.01
_SUPPLY = np.random.default_rng(7).standard_normal(PIECE_VALUES + NUM_PLACES, dtype=np.float32) * np.float32(
    STANDARD_DEVIATION
)


def piece(peer: int, number: int, num_values: int) -> npt.NDArray[np.float32]:
    """One piece of one peer's vector: normal values, cut from one supply at a place of its own."""
    place = (peer * 7919 + number * 10_007) % NUM_PLACES
    return _SUPPLY[place : place + num_values]


def fill(vector: npt.NDArray[np.float32], peer: int) -> None:
    for number, start in enumerate(range(0, len(vector), PIECE_VALUES)):
        part = vector[start : start + PIECE_VALUES]
        part[:] = piece(peer, number, len(part))


def largest_error(mean: npt.NDArray[np.float32], num_peers: int) -> float:
    """Of pieces all over the vector against the float64 mean, over the peers' standard deviation."""
    num_pieces = -(-len(mean) // PIECE_VALUES)
    worst = 0.0
    for number in {*range(0, num_pieces, max(1, num_pieces // NUM_CHECKED)), num_pieces - 1}:
        got = mean[number * PIECE_VALUES : (number + 1) * PIECE_VALUES].astype(np.float64)
        exact = sum(piece(peer, number, len(got)).astype(np.float64) for peer in range(num_peers)) / num_peers
        worst = max(worst, float(np.abs(got - exact).max()))
    return worst / STANDARD_DEVIATION


def give_back_memory() -> None:
    """Free what the allocator keeps for later, so that one measurement does not start with the last one's memory."""
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
