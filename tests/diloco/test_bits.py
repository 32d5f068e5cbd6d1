"""Peers of unlike hardware get the same bits: invariant 1. One machine plays several, in programs of their own."""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

PROGRAM = Path(__file__).parent / "outer_bits.py"
CAPABILITIES = ["default", "avx2", "avx512"]

pytestmark = pytest.mark.swarm

Hashes = dict[str, dict[tuple[str, bool], set[str]]]  # way of stepping → (capability, flush-to-zero) → of all threads


def supported_capabilities() -> list[str]:
    here = torch.backends.cpu.get_cpu_capability().lower()
    return CAPABILITIES[: CAPABILITIES.index(here) + 1] if here in CAPABILITIES else ["default"]


@pytest.fixture(scope="module")
def hashes() -> Hashes:
    results: Hashes = {}
    for capability, flush_to_zero in product(supported_capabilities(), (False, True)):
        program = subprocess.run(
            [sys.executable, str(PROGRAM), str(int(flush_to_zero))],
            env={**os.environ, "ATEN_CPU_CAPABILITY": capability, "OMP_WAIT_POLICY": "passive"},
            stdout=subprocess.PIPE,
            check=True,
            timeout=250,
        )
        output = json.loads(program.stdout)
        if len(supported_capabilities()) > 1:
            assert output["capability"].lower() == capability
        for name, of_threads in output["hashes"].items():
            results.setdefault(name, {})[capability, flush_to_zero] = set(of_threads)
    return results


def test_codec_sum_and_outer_step_give_one_hash_everywhere(hashes: Hashes) -> None:
    ours = hashes["ours"]
    assert len(ours) == 2 * len(supported_capabilities())
    assert len(set.union(*ours.values())) == 1, ours


def test_torchs_own_optimizer_would_not(hashes: Hashes) -> None:
    if len(supported_capabilities()) == 1:
        pytest.skip("this processor plays one kind only")
    assert len(set.union(*(hashes["torch's"][capability, False] for capability in supported_capabilities()))) > 1


def test_without_squashing_flush_to_zero_would_show(hashes: Hashes) -> None:
    unsquashed = hashes["without squashing"]
    assert unsquashed["default", False] != unsquashed["default", True]
