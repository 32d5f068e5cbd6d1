import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from swarm_diloco.diloco.arithmetic import CHUNK_VALUES, LARGEST, SMALLEST
from swarm_diloco.diloco.codec import BLOCK_VALUES, CODEC_NAMES, E3M0_VALUES, Codec, CodecSettings, codec
from swarm_diloco.diloco.pseudo_gradient import norm
from swarm_diloco.errors import RecordError

Floats = npt.NDArray[np.float32]

BLOCK = 16
ORDINARY = st.floats(-1e6, 1e6, width=32)
ANY_FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
NAMES = st.sampled_from(CODEC_NAMES)


def vectors(elements: st.SearchStrategy[float]) -> st.SearchStrategy[Floats]:
    return arrays(np.float32, st.integers(1, 3 * BLOCK + 1), elements=elements)


def round_trip(form: Codec, values: Floats) -> Floats:
    return form.decode(form.encode(torch.from_numpy(values)), len(values)).numpy()


def squash(values: Floats) -> Floats:
    return np.where(np.abs(values) < np.float32(SMALLEST), np.float32(0), values)


@given(NAMES, vectors(ANY_FINITE))
def test_whatever_is_finite_encodes_to_the_stated_size_and_decodes(name: str, values: Floats) -> None:
    form, before = codec(name, BLOCK), values.tobytes()
    data = form.encode(torch.from_numpy(values))
    assert len(data) == form.encoded_bytes(len(values))
    decoded = form.decode(data, len(values))
    assert decoded.dtype == torch.float32
    assert decoded.shape == (len(values),)
    assert values.tobytes() == before


@pytest.mark.parametrize(
    ("name", "num_bytes"), [("float32", 2052), ("float16", 1026), ("int8", 513 + 12), ("e3m0", 257 + 12)]
)
def test_sizes_by_hand(name: str, num_bytes: int) -> None:
    assert codec(name, 256).encoded_bytes(513) == num_bytes  # three blocks, the last of one value


@given(vectors(ANY_FINITE))
def test_float32_is_exact_within_the_limits(values: Floats) -> None:
    expected = squash(np.clip(values, np.float32(-LARGEST), np.float32(LARGEST)))
    assert round_trip(codec("float32", BLOCK), values).tobytes() == expected.tobytes()


@given(vectors(ANY_FINITE))
def test_float16_is_numpys_and_saturates(values: Floats) -> None:
    expected = np.clip(values, -65504, 65504).astype(np.float16)
    data = codec("float16", BLOCK).encode(torch.from_numpy(values))
    assert data == expected.astype("<f2").tobytes()
    assert round_trip(codec("float16", BLOCK), values).tobytes() == squash(expected.astype(np.float32)).tobytes()


def scale_of(block: Floats, largest_code_value: float) -> np.float32:
    largest = np.abs(block).max()
    return np.float32(0) if largest < SMALLEST else largest / np.float32(largest_code_value)


def blocks_of(values: Floats) -> list[Floats]:
    return [values[start : start + BLOCK] for start in range(0, len(values), BLOCK)]


@given(vectors(ORDINARY))
def test_int8_is_absmax_over_127_a_block_rounded_to_nearest(values: Floats) -> None:
    scales = np.array([scale_of(block, 127) for block in blocks_of(values)], "<f4")
    codes = [
        np.rint(block / (scale or 1)).astype(np.int8) for block, scale in zip(blocks_of(values), scales, strict=True)
    ]
    data = codec("int8", BLOCK).encode(torch.from_numpy(values))
    assert data == scales.tobytes() + np.concatenate(codes).tobytes()
    expected = [code.astype(np.float32) * scale for code, scale in zip(codes, scales, strict=True)]
    assert round_trip(codec("int8", BLOCK), values).tobytes() == squash(np.concatenate(expected)).tobytes()


@given(vectors(ORDINARY))
def test_e3m0_takes_the_nearest_of_its_values(values: Floats) -> None:
    decoded = round_trip(codec("e3m0", BLOCK), values)
    for block, result in zip(blocks_of(values), blocks_of(decoded), strict=True):
        scale = float(scale_of(block, 1))
        for value, got in zip(block.astype(float), result.astype(float), strict=True):
            distances = [abs(abs(value) - scale * level) for level in E3M0_VALUES]
            assert abs(value - got) <= min(distances) + 1e-6 * scale
            assert abs(got) in {scale * level for level in E3M0_VALUES} | {0.0}
            assert got * value >= 0


def test_e3m0_by_hand() -> None:
    values = [2.0, -2.0, 1.0, -0.5, 0.25, 0.125, 0.0625, -0.03125, 0.015625, -0.015, -0.0, 1.5, -1.49, 3.0 / 64, 0.047]
    data = codec("e3m0", 16).encode(torch.tensor(values))
    assert data[:4] == np.float32(2).tobytes()
    #                  2  −2   1 −.5  .25 ⅛  1/16 −1/32  1/64 −.015  −0  1.5→2  −1.49→−1  3/64→1/16  .047→1/16
    codes = ["7", "f", "6", "d", "4", "3", "2", "9", "1", "0", "0", "7", "e", "2", "2", "0"]
    assert data[4:].hex() == "".join(high + low for low, high in zip(codes[0::2], codes[1::2], strict=True))
    assert codec("e3m0", 16).decode(data, 15).tolist() == [
        2, -2, 1, -0.5, 0.25, 0.125, 0.0625, -0.03125, 0.03125, 0, 0, 2, -1, 0.0625, 0.0625,
    ]  # fmt: skip


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("scale", [2.0**-90, 1.0, 2.0**100])
@pytest.mark.parametrize("code", range(1, 8))
def test_e3m0_goes_up_from_its_threshold_on_and_not_a_float_before(code: int, scale: float, sign: int) -> None:
    below, level = E3M0_VALUES[code - 1], E3M0_VALUES[code]
    threshold = np.float32((below + level) / 2)
    values = np.array([1, sign * threshold, sign * np.nextafter(threshold, np.float32(0))], np.float32)
    decoded = round_trip(codec("e3m0", 16), values * np.float32(scale)) / np.float32(scale)
    assert decoded.tolist() == [1, sign * level, sign * below]


@pytest.mark.parametrize("name", ["int8", "e3m0"])
@pytest.mark.parametrize("scale", [1.0, -1.0, 0.0, 2.0**-97, 2.0**93, 2.0**99])
def test_any_code_times_any_scale_is_bounded_or_refused(name: str, scale: float) -> None:
    """Also codes that encoding never gives, with scales from which a shorter way might be taken."""
    form, codes = codec(name, 256), np.arange(256, dtype=np.uint8)
    num_values = {"int8": 256, "e3m0": 512}[name]
    data = np.full(form.encoded_bytes(num_values) // 4 - 64, scale, "<f4").tobytes() + codes.tobytes()
    values = {
        "int8": codes.view(np.int8).astype(np.float32),
        "e3m0": np.array([*E3M0_VALUES, *(-value for value in E3M0_VALUES)], np.float32)[
            np.stack([codes & 15, codes >> 4], axis=1).ravel()
        ],
    }[name] * np.float32(scale)
    if np.abs(values).max() > LARGEST:
        with pytest.raises(RecordError, match="limit"):
            form.decode(data, num_values)
    else:
        assert form.decode(data, num_values).numpy().tobytes() == (squash(values) + np.float32(0)).tobytes()


def test_int8_by_hand() -> None:
    data = codec("int8", 16).encode(torch.tensor([127.0, -127.0, 0.5, 1.5, -63.4, 0.0]))
    assert data == np.float32(1).tobytes() + bytes([127, 129, 0, 2, 256 - 63, 0])


@pytest.mark.parametrize("name", ["int8", "e3m0"])
def test_blocks_do_not_know_of_each_other(name: str) -> None:
    form = codec(name, BLOCK)
    values = np.random.default_rng(3).standard_normal(3 * BLOCK + 5, dtype=np.float32)
    values[BLOCK : 2 * BLOCK] *= 1e6
    alone = np.concatenate([round_trip(form, block) for block in blocks_of(values)])
    assert round_trip(form, values).tobytes() == alone.tobytes()


@pytest.mark.parametrize("name", ["int8", "e3m0"])
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-40, -(2.0**-101)])
def test_a_block_without_magnitude_has_scale_zero(name: str, value: float) -> None:
    values = np.full(2 * BLOCK, value, np.float32)
    values[BLOCK:] = 1
    data = codec(name, BLOCK).encode(torch.from_numpy(values))
    assert data[:4] == bytes(4)
    assert not any(data[8 : 8 + codec(name, BLOCK).encoded_bytes(BLOCK) - 4])
    assert round_trip(codec(name, BLOCK), values).tobytes() == np.repeat(np.array([0, 1], np.float32), BLOCK).tobytes()


@pytest.mark.parametrize("name", CODEC_NAMES)
@pytest.mark.parametrize("block_values", [BLOCK_VALUES[0], 256, BLOCK_VALUES[-1]])
def test_a_vector_of_several_chunks_is_its_chunks(name: str, block_values: int) -> None:
    form = codec(name, block_values)
    values = np.random.default_rng(4).standard_normal(2 * CHUNK_VALUES + 3 * block_values + 7, dtype=np.float32)
    pieces = [values[start : start + CHUNK_VALUES] for start in range(0, len(values), CHUNK_VALUES)]
    expected = np.concatenate([round_trip(form, piece) for piece in pieces])
    assert round_trip(form, values).tobytes() == expected.tobytes()
    assert np.abs(expected - values).max() <= np.abs(values).max() / 4  # half of the widest gap of e3m0


@given(NAMES, st.integers(1, 40), st.data())
def test_anybodys_bytes_are_refused_or_give_bounded_values(name: str, num_values: int, data: st.DataObject) -> None:
    form = codec(name, BLOCK)
    size = form.encoded_bytes(num_values)
    hostile = data.draw(st.binary(min_size=size, max_size=size))
    try:
        values = form.decode(hostile, num_values)
    except RecordError:
        with pytest.raises(RecordError):
            form.check(hostile, num_values)
        return
    magnitudes = values.abs()
    assert bool(((magnitudes <= LARGEST) & ((magnitudes >= SMALLEST) | (magnitudes == 0))).all())
    assert not bool((values.signbit() & (values == 0)).any())
    assert form.check(hostile, num_values) == pytest.approx(norm(values), rel=1e-4, abs=1e-15)


@pytest.mark.parametrize("name", CODEC_NAMES)
@pytest.mark.parametrize("change", [-1, 1])
def test_bytes_of_another_size_are_refused(name: str, change: int) -> None:
    form = codec(name, BLOCK)
    data = (form.encode(torch.ones(33)) + b"\0")[: form.encoded_bytes(33) + change]
    with pytest.raises(RecordError, match="33 values"):
        form.decode(data, 33)
    with pytest.raises(RecordError, match="33 values"):
        form.check(data, 33)


@pytest.mark.parametrize("name", ["float32", "int8", "e3m0"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 2.0**101, -(2.0**101)])
@pytest.mark.parametrize("block", [0, 2])
def test_a_float_out_of_bounds_is_refused_wherever_it_stands(name: str, number: float, block: int) -> None:
    form = codec(name, BLOCK)
    data = bytearray(form.encode(torch.ones(2 * BLOCK + 1)))
    position = 4 * block * (BLOCK if name == "float32" else 1)
    data[position : position + 4] = np.float32(number).tobytes()
    with pytest.raises(RecordError, match="limit"):
        form.decode(data, 2 * BLOCK + 1)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_half_that_is_not_finite_is_refused(number: float) -> None:
    data = np.array([1, number, 1], "<f2").tobytes()
    with pytest.raises(RecordError, match="limit"):
        codec("float16", BLOCK).decode(data, 3)


@pytest.mark.parametrize("name", CODEC_NAMES)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("index", [0, 20, 2 * CHUNK_VALUES + 2])
def test_what_is_not_finite_is_not_encoded(name: str, number: float, index: int) -> None:
    values = torch.ones(2 * CHUNK_VALUES + 3)
    values[index] = number
    with pytest.raises(ValueError, match=f"{name}: values .* cannot be encoded"):
        codec(name, BLOCK).encode(values)


@pytest.mark.parametrize("name", CODEC_NAMES)
@pytest.mark.parametrize(
    "values", [torch.ones(2, 2), torch.ones(4)[::2], torch.ones(2, dtype=torch.float64), torch.ones(0)]
)
def test_what_is_no_plain_vector_is_not_encoded(name: str, values: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"vector|contiguous"):
        codec(name, BLOCK).encode(values)


@pytest.mark.parametrize("name", CODEC_NAMES)
@pytest.mark.parametrize("num_values", [1, 33, CHUNK_VALUES, 2 * CHUNK_VALUES + 17])
def test_reading_by_chunks_gives_the_same_values(name: str, num_values: int) -> None:
    form = codec(name, BLOCK)
    data = form.encode(torch.from_numpy(np.random.default_rng(5).standard_normal(num_values, dtype=np.float32)))
    whole, covered = form.decode(data, num_values), 0
    for chunk, values in form.checked_chunks(data, num_values):
        assert chunk.start == covered
        assert torch.equal(values, whole[chunk])
        values.zero_()  # it is the caller's
        covered = chunk.stop
    assert covered == num_values


@pytest.mark.parametrize("name", ["float32", "int8", "e3m0"])
@pytest.mark.parametrize("size", [2.0**-90, 1.0, 2.0**59, 2.0**80, 2.0**99])
def test_the_norm_is_right_at_any_size(name: str, size: float) -> None:
    form, num_values = codec(name, BLOCK), CHUNK_VALUES + 50
    data = form.encode(torch.full((num_values,), size))
    assert form.check(data, num_values) == pytest.approx(size * math.sqrt(num_values), rel=1e-4, abs=1e-15)


@pytest.mark.parametrize("name", CODEC_NAMES)
def test_decoding_gives_a_vector_of_its_own(name: str) -> None:
    form = codec(name, BLOCK)
    data = form.encode(torch.ones(5))
    form.decode(data, 5).zero_()
    assert form.decode(memoryview(data), 5).tolist() == [1] * 5


@given(vectors(ORDINARY))
def test_e3m0_changes_nothing_at_the_second_time(values: Floats) -> None:
    once = round_trip(codec("e3m0", BLOCK), values)
    assert round_trip(codec("e3m0", BLOCK), once).tobytes() == once.tobytes()


@pytest.mark.parametrize("bad", [{"upload": "e4m3"}, {"download": ""}, {"block_values": 100}, {"block_values": 8}])
def test_settings_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"a codec is one of|block_values is a power of two"):
        CodecSettings(**bad)


def test_the_default_is_four_bits_up_and_eight_down() -> None:
    settings = CodecSettings()
    assert (settings.upload, settings.download, settings.block_values) == ("e3m0", "int8", 256)
