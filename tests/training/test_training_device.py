from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from swarm_diloco.errors import ModelError
from swarm_diloco.training import device as devices
from swarm_diloco.training.device import Device, choose_device, choose_micro_batch, free_bytes
from swarm_diloco.training.settings import InnerSettings


def test_a_cpu_works_without_being_told_anything() -> None:
    chosen = choose_device("cpu")
    assert chosen.device.type == chosen.name == "cpu"
    assert chosen.precision in ("float32", "bfloat16")
    assert free_bytes(chosen.device) > 0


@pytest.mark.parametrize(("gain", "precision"), [(1.0, "float32"), (1.2, "float32"), (3.0, "bfloat16")])
def test_bfloat16_is_taken_on_a_cpu_only_where_it_is_measured_to_gain(
    gain: float, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_product_seconds", lambda dtype: gain if dtype == torch.float32 else 1.0)
    assert choose_device("cpu").precision == precision


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_what_is_asked_for_is_taken(precision: str) -> None:
    chosen = choose_device("cpu", precision)
    assert chosen.precision == precision
    with chosen.autocast():
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert str(product.dtype) == f"torch.{precision}"


def test_a_device_or_precision_that_is_not_there_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="no device 'cuda:99' here"):
        choose_device("cuda:99")
    with pytest.raises(ModelError, match="no device 'abacus' here"):
        choose_device("abacus")
    with pytest.raises(ModelError, match="float16"):
        choose_device("cpu", "float16")


def test_the_micro_batch_is_what_fits_into_free_memory(
    tiny_model: Callable[..., PreTrainedModel], inner_settings: Callable[..., InnerSettings]
) -> None:
    model, settings = tiny_model(), inner_settings(batch_sequences=12)
    sizes = [choose_micro_batch(model, settings, free) for free in (0, 10**6, 2 * 10**6, 4 * 10**6, 10**9)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (1, 12)
    assert len(set(sizes)) > 2
    assert set(sizes) <= {1, 2, 3, 6, 12}


def test_float32_runs_without_autocast() -> None:
    with Device(torch.device("cpu"), torch.float32).autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
