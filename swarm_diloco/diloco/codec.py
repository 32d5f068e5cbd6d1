"""How float32 vectors travel: `float32`, `float16`, `int8` and `e3m0`.

The two small ones scale by blocks: a block's scale is its largest magnitude over the largest code value, a float32; the
bytes are all scales (little-endian), then all codes. `int8`: one byte, −127 to 127. `e3m0` (arXiv 2501.18512): 4 bits,
sign and three exponent bits, codes 0 for 0 and 1 to 7 for 2^(k−7); of two values, the first has the byte's low half.
Both round to nearest in linear distance. Decoding is a table look-up and one multiply.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swarm_diloco.diloco.arithmetic import CHUNK_VALUES, LARGEST, SMALLEST, check_vectors, chunks, squash_
from swarm_diloco.diloco.pseudo_gradient import norm
from swarm_diloco.errors import RecordError

CodecName = Literal["float32", "float16", "int8", "e3m0"]
CODEC_NAMES: tuple[CodecName, ...] = get_args(CodecName)
BLOCK_VALUES = tuple(2**k for k in range(4, 15))  # powers of two, so that a chunk holds whole blocks
assert CHUNK_VALUES % BLOCK_VALUES[-1] == 0

Data = bytes | bytearray | memoryview


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecSettings:
    """`upload` carries the pseudo-gradients to the reducers, `download` their average back to all."""

    upload: CodecName = "e3m0"
    download: CodecName = "int8"
    block_values: int = 256  # that share a scale

    def __post_init__(self) -> None:
        codec(self.upload, self.block_values)
        codec(self.download, self.block_values)


class Codec(ABC):
    """One form of encoding. `largest` is the magnitude at which encoding saturates."""

    name: ClassVar[CodecName]
    largest: ClassVar[float] = LARGEST

    @abstractmethod
    def encoded_bytes(self, num_values: int) -> int:
        """The exact size of `num_values` encoded values."""

    def encode(self, values: Tensor) -> bytes:
        """The bytes of a contiguous 1-D float32 vector on the CPU, which is left as it is.

        Raises ValueError if it is empty or holds a value that is not finite. Any other vector gives bytes that `decode`
        takes. The same on all processors.
        """
        check_vectors(values=values)
        lowest, highest = _extremes(values)
        if not (math.isfinite(lowest) and math.isfinite(highest)):
            raise ValueError(f"{self.name}: values from {lowest} to {highest} cannot be encoded")
        if max(-lowest, highest) > self.largest:
            values = values.clamp(-self.largest, self.largest)
        return self._write(values)

    def decode(self, data: Data, num_values: int) -> Tensor:
        """The float32 vector that anybody's bytes stand for, magnitudes below 2^−100 set to +0.

        Raises RecordError for another size than `num_values` have, and for a value that is not finite or beyond ±2^100.
        """
        if len(data) != self.encoded_bytes(num_values):
            raise RecordError(
                f"{self.name}: {len(data)} bytes where {num_values} values have {self.encoded_bytes(num_values)}"
            )
        values = self._read(data, num_values)
        lowest, highest = _extremes(values)
        if not (lowest >= -LARGEST and highest <= LARGEST):
            raise RecordError(f"{self.name}: values from {lowest} to {highest} where ±2^100 is the limit")
        return squash_(values)

    def check(self, data: Data, num_values: int) -> float:
        """The norm of what the bytes stand for, without keeping it. Raises RecordError as `decode` does."""
        return norm(self.decode(data, num_values))

    @abstractmethod
    def _write(self, values: Tensor) -> bytes:
        """Encode finite values within ±largest."""

    @abstractmethod
    def _read(self, data: Data, num_values: int) -> Tensor:
        """Decode bytes of the right size into a vector of its own, unchecked."""


def _extremes(values: Tensor) -> tuple[float, float]:
    """The lowest and highest value; both are NaN if any value is."""
    if values.numel() == 0:
        raise ValueError("a vector without values cannot be encoded")
    lowest, highest = torch.aminmax(values)
    return lowest.item(), highest.item()


class Float32(Codec):
    """The values themselves, little-endian."""

    name = "float32"

    def encoded_bytes(self, num_values: int) -> int:
        return 4 * num_values

    def _write(self, values: Tensor) -> bytes:
        return _little_endian(values, "<f4")

    def _read(self, data: Data, num_values: int) -> Tensor:
        return torch.from_numpy(np.frombuffer(data, "<f4").astype(np.float32))


class Float16(Codec):
    """IEEE half precision, little-endian, round to nearest even; saturates at ±65504."""

    name = "float16"
    largest = 65504.0

    def encoded_bytes(self, num_values: int) -> int:
        return 2 * num_values

    def _write(self, values: Tensor) -> bytes:
        return _little_endian(values.to(torch.float16), "<f2")

    def _read(self, data: Data, num_values: int) -> Tensor:
        return torch.from_numpy(np.frombuffer(data, "<f2").astype(np.float16)).float()


@dataclass(frozen=True, slots=True)
class BlockCodec(Codec):
    """Codes times one float32 scale a block. A block with no magnitude of 2^−100 or more has scale 0."""

    largest_code_value: ClassVar[float]

    block_values: int

    def encoded_bytes(self, num_values: int) -> int:
        return 4 * self._num_blocks(num_values) + self._code_bytes(num_values)

    def _num_blocks(self, num_values: int) -> int:
        return -(-num_values // self.block_values)

    def _blocks(self, values: Tensor) -> Iterator[Tensor]:
        """The vector as views [blocks, block_values] of at most a chunk each, then a short block [1, rest] if any."""
        num_whole = values.numel() // self.block_values * self.block_values
        for chunk in chunks(num_whole):
            yield values[chunk].view(-1, self.block_values)
        if num_whole < values.numel():
            yield values[num_whole:].view(1, -1)

    def _write(self, values: Tensor) -> bytes:
        scales, codes = [], []
        for blocks in self._blocks(values):
            magnitudes = blocks.abs().amax(dim=1, keepdim=True)
            is_zero = magnitudes < SMALLEST
            scale = magnitudes / self.largest_code_value
            scales.append(scale.masked_fill(is_zero, 0.0).view(-1))
            codes.append(self._codes((blocks / scale.masked_fill_(is_zero, 1.0)).view(-1)))
        return _little_endian(torch.cat(scales), "<f4") + torch.cat(codes).numpy().tobytes()

    def _read(self, data: Data, num_values: int) -> Tensor:
        num_blocks = self._num_blocks(num_values)
        scales = torch.from_numpy(np.frombuffer(data, "<f4", count=num_blocks).astype(np.float32))
        values = self._code_values(np.frombuffer(data, np.uint8, offset=4 * num_blocks), num_values)
        first = 0
        for blocks in self._blocks(values):
            blocks.mul_(scales[first : first + len(blocks), None])
            first += len(blocks)
        return values

    @abstractmethod
    def _code_bytes(self, num_values: int) -> int:
        """The size of the codes alone."""

    @abstractmethod
    def _codes(self, quotients: Tensor) -> Tensor:
        """The codes (uint8) of values within ±largest_code_value; `quotients` may be overwritten."""

    @abstractmethod
    def _code_values(self, codes: npt.NDArray[np.uint8], num_values: int) -> Tensor:
        """What the codes stand for before scaling."""


class Int8(BlockCodec):
    name = "int8"
    largest_code_value = 127.0

    def _code_bytes(self, num_values: int) -> int:
        return num_values

    def _codes(self, quotients: Tensor) -> Tensor:
        return quotients.round_().to(torch.int8).view(torch.uint8)

    def _code_values(self, codes: npt.NDArray[np.uint8], num_values: int) -> Tensor:
        return torch.from_numpy(codes.view(np.int8).astype(np.float32))


E3M0_VALUES = (0.0, *(2.0 ** (code - 7) for code in range(1, 8)))
_E3M0_THRESHOLDS = tuple((low + high) / 2 for low, high in pairwise(E3M0_VALUES))


def _e3m0_code(top_bits: int) -> int:
    """The 4-bit code of all float32 values whose sign, exponent and first mantissa bit are `top_bits`.

    These bits decide, because each threshold is 2^e or 1.5 × 2^e. A value on a threshold goes up.
    """
    sign, exponent, first_mantissa_bit = top_bits >> 9, top_bits >> 1 & 0xFF, top_bits & 1
    magnitude = 2.0 ** (exponent - 127) * (1 + first_mantissa_bit / 2)
    code = sum(magnitude >= threshold for threshold in _E3M0_THRESHOLDS)
    return sign << 3 | code if code else 0


_E3M0_CODES = torch.tensor([_e3m0_code(top_bits) for top_bits in range(1024)], dtype=torch.uint8)
_E3M0_CODE_VALUES = np.array([*E3M0_VALUES, 0.0, *(-value for value in E3M0_VALUES[1:])], dtype=np.float32)
_E3M0_PAIRS = np.stack([np.tile(_E3M0_CODE_VALUES, 16), np.repeat(_E3M0_CODE_VALUES, 16)], axis=1).view(np.uint64)[:, 0]


class E3M0(BlockCodec):
    name = "e3m0"
    largest_code_value = 1.0

    def _code_bytes(self, num_values: int) -> int:
        return (num_values + 1) // 2

    def _codes(self, quotients: Tensor) -> Tensor:
        top_bits = quotients.view(torch.int32).bitwise_right_shift(22).bitwise_and_(0x3FF)
        codes = _E3M0_CODES.index_select(0, top_bits)
        packed = codes[0::2].clone()
        packed[: len(codes) // 2] |= codes[1::2] << 4
        return packed

    def _code_values(self, codes: npt.NDArray[np.uint8], num_values: int) -> Tensor:
        return torch.from_numpy(_E3M0_PAIRS.take(codes).view(np.float32)[:num_values])


def _little_endian(values: Tensor, form: Literal["<f4", "<f2"]) -> bytes:
    return values.numpy().astype(form, copy=False).tobytes()


def codec(name: str, block_values: int) -> Codec:
    """The codec of that name; only `int8` and `e3m0` use `block_values`. Raises ValueError naming the rule."""
    if block_values not in BLOCK_VALUES:
        raise ValueError(f"block_values is a power of two from {BLOCK_VALUES[0]} to {BLOCK_VALUES[-1]}: {block_values}")
    match name:
        case "float32":
            return Float32()
        case "float16":
            return Float16()
        case "int8":
            return Int8(block_values)
        case "e3m0":
            return E3M0(block_values)
        case _:
            raise ValueError(f"a codec is one of {', '.join(CODEC_NAMES)}, not {name!r}")
