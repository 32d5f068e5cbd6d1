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
from typing import ClassVar, Literal, NoReturn, get_args

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

_LARGEST_FLOAT32_NORM = 2.0**60  # whose square float32 still holds


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
        if values.numel() == 0:
            raise ValueError("a vector without values cannot be encoded")
        return self._encode(values)

    def decode(self, data: Data, num_values: int) -> Tensor:
        """The float32 vector that anybody's bytes stand for, magnitudes below 2^−100 set to +0.

        Raises RecordError for another size than `num_values` have, and for a value that is not finite or beyond ±2^100.
        """
        self._check_size(data, num_values)
        values = torch.empty(num_values)
        for chunk in chunks(num_values):
            if not self._read(data, num_values, chunk, values[chunk]):
                self._check_limit(values[chunk])
                squash_(values[chunk])
        return values

    def check(self, data: Data, num_values: int) -> float:
        """The norm of what the bytes stand for, to about four digits. Raises RecordError as `decode` does."""
        norms = []
        for _, values in self.checked_chunks(data, num_values):
            norms.append(torch.linalg.vector_norm(values).item())
            if not norms[-1] <= _LARGEST_FLOAT32_NORM:
                self._check_limit(values)
                norms[-1] = norm(values)
        return math.hypot(*norms)

    def checked_chunks(self, data: Data, num_values: int) -> Iterator[tuple[slice, Tensor]]:
        """The values of bytes that have passed `check`, in chunks that stay in cache, tiny values as they are.

        Each chunk is the caller's to change until it asks for the next. Raises RecordError for a wrong size.
        """
        self._check_size(data, num_values)
        scratch = torch.empty(min(num_values, CHUNK_VALUES))
        for chunk in chunks(num_values):
            values = scratch[: chunk.stop - chunk.start]
            self._read(data, num_values, chunk, values)
            yield chunk, values

    def _check_size(self, data: Data, num_values: int) -> None:
        if len(data) != self.encoded_bytes(num_values):
            raise RecordError(
                f"{self.name}: {len(data)} bytes where {num_values} values have {self.encoded_bytes(num_values)}"
            )

    def _check_limit(self, values: Tensor) -> None:
        lowest, highest = _extremes(values)
        if not (lowest >= -LARGEST and highest <= LARGEST):
            raise RecordError(f"{self.name}: values from {lowest} to {highest} where ±2^100 is the limit")

    def _refuse(self, values: Tensor) -> NoReturn:
        lowest, highest = _extremes(values)
        raise ValueError(f"{self.name}: values from {lowest} to {highest} cannot be encoded")

    @abstractmethod
    def _encode(self, values: Tensor) -> bytes:
        """Encode at least one value."""

    @abstractmethod
    def _read(self, data: Data, num_values: int, chunk: slice, out: Tensor) -> bool:
        """Write a chunk of the values that bytes of the right size stand for into `out`.

        True if they are known to be within ±2^100, and 0 or of a magnitude of 2^−100 at least.
        """


def _extremes(values: Tensor) -> tuple[float, float]:
    """The lowest and highest value; both are NaN if any value is."""
    lowest, highest = torch.aminmax(values)
    return lowest.item(), highest.item()


@dataclass(frozen=True, slots=True)
class FloatCodec(Codec):
    """The values themselves in one of IEEE's forms, little-endian."""

    form: ClassVar[Literal["<f4", "<f2"]]
    kind: ClassVar[torch.dtype]

    def encoded_bytes(self, num_values: int) -> int:
        return self.kind.itemsize * num_values

    def _encode(self, values: Tensor) -> bytes:
        lowest, highest = _extremes(values)
        if not (math.isfinite(lowest) and math.isfinite(highest)):
            self._refuse(values)
        if max(-lowest, highest) > self.largest:
            values = values.clamp(-self.largest, self.largest)
        return values.to(self.kind).numpy().astype(self.form, copy=False).tobytes()

    def _read(self, data: Data, num_values: int, chunk: slice, out: Tensor) -> bool:
        form = np.dtype(self.form)
        read = np.frombuffer(data, form, count=out.numel(), offset=form.itemsize * chunk.start)
        out.copy_(torch.from_numpy(read.astype(form.newbyteorder("="))))
        return False


class Float32(FloatCodec):
    name = "float32"
    form, kind = "<f4", torch.float32


class Float16(FloatCodec):
    """Rounded to nearest even; saturates at ±65504."""

    name = "float16"
    largest = 65504.0
    form, kind = "<f2", torch.float16


@dataclass(frozen=True, slots=True)
class BlockCodec(Codec):
    """Codes times one float32 scale a block. A block with no magnitude of 2^−100 or more has scale 0."""

    largest_code_value: ClassVar[float]  # of the codes that encoding gives
    most_code_value: ClassVar[float]  # of all codes that decode
    least_code_value: ClassVar[float]  # besides 0
    steps: ClassVar[float]  # a power of two: codes are found from quotients value · steps / scale

    block_values: int

    def encoded_bytes(self, num_values: int) -> int:
        return 4 * self._num_blocks(num_values) + self._code_bytes(num_values)

    def _num_blocks(self, num_values: int) -> int:
        return -(-num_values // self.block_values)

    def _encode(self, values: Tensor) -> bytes:
        num_values = values.numel()
        encoded = torch.empty(self.encoded_bytes(num_values), dtype=torch.uint8)
        scales = np.empty((self._num_blocks(num_values), 1), np.float32)
        codes = encoded[scales.nbytes :]
        quotients = torch.empty(min(scales.size * self.block_values, CHUNK_VALUES))
        for chunk in chunks(num_values):
            blocks = self._blocks(values[chunk])
            scale = scales[self._num_blocks(chunk.start) : self._num_blocks(chunk.stop)]
            quotient = quotients[: blocks.numel()].view_as(blocks)
            torch.amax(torch.abs(blocks, out=quotient), dim=1, keepdim=True, out=torch.from_numpy(scale))
            largest = scale.max()
            if not largest <= self.largest:
                if not math.isfinite(largest):
                    self._refuse(values)
                blocks = blocks.clamp(-self.largest, self.largest)
                scale.clip(max=self.largest, out=scale)
            is_zero = scale < SMALLEST
            scale /= self.largest_code_value
            torch.div(blocks, torch.from_numpy(np.where(is_zero, 1, scale) / self.steps), out=quotient)
            scale[is_zero] = 0
            self._write_codes(quotient.view(-1), codes[self._code_bytes(chunk.start) : self._code_bytes(chunk.stop)])
        encoded[: scales.nbytes] = torch.from_numpy(scales.ravel().astype("<f4", copy=False).view(np.uint8))
        return encoded.numpy().tobytes()

    def _blocks(self, values: Tensor) -> Tensor:
        """As [blocks, block_values]: a view, or a copy if the last block is short and is filled up with zeros."""
        if missing := -values.numel() % self.block_values:
            values = torch.nn.functional.pad(values, (0, missing))
        return values.view(-1, self.block_values)

    def _read(self, data: Data, num_values: int, chunk: slice, out: Tensor) -> bool:
        first, end = self._num_blocks(chunk.start), self._num_blocks(chunk.stop)
        scales = np.frombuffer(data, "<f4", count=end - first, offset=4 * first).astype(np.float32)
        first_code, end_code = self._code_bytes(chunk.start), self._code_bytes(chunk.stop)
        offset = 4 * self._num_blocks(num_values) + first_code
        codes = np.frombuffer(data, np.uint8, count=end_code - first_code, offset=offset)
        values = out
        if out.numel() % self.block_values:
            values = torch.zeros(len(scales) * self.block_values)
            codes = np.pad(codes, (0, self._code_bytes(values.numel()) - len(codes)))
        self._read_codes(torch.from_numpy(codes.copy()), values)
        values.view(-1, self.block_values).mul_(torch.from_numpy(scales)[:, None])
        if values is not out:
            out.copy_(values[: out.numel()])
        # Honest scales bound the values, so that no pass over these is needed to know.
        largest, least = np.abs(scales).max(), scales.min()
        return bool(largest <= LARGEST / self.most_code_value and least >= SMALLEST / self.least_code_value)

    @abstractmethod
    def _code_bytes(self, num_values: int) -> int:
        """The size of the codes alone."""

    @abstractmethod
    def _write_codes(self, quotients: Tensor, out: Tensor) -> None:
        """Fill `out` (uint8) with the codes of its values' quotients, which may be overwritten."""

    @abstractmethod
    def _read_codes(self, codes: Tensor, out: Tensor) -> None:
        """Fill `out` with what the codes (uint8) stand for before scaling."""


class Int8(BlockCodec):
    name = "int8"
    largest_code_value, most_code_value, least_code_value, steps = 127.0, 128.0, 1.0, 1.0

    def _code_bytes(self, num_values: int) -> int:
        return num_values

    def _write_codes(self, quotients: Tensor, out: Tensor) -> None:
        out.view(torch.int8).copy_(quotients[: len(out)].round_())

    def _read_codes(self, codes: Tensor, out: Tensor) -> None:
        out.copy_(codes.view(torch.int8))


E3M0_VALUES = (0.0, *(2.0 ** (code - 7) for code in range(1, 8)))
_E3M0_STEPS = 128  # all thresholds are whole multiples of 1/128, so a value's code follows from int(128 · value)


def _e3m0_code(multiple: int) -> int:
    """The 4-bit code of all values v with int(128 · v) = `multiple`, towards zero. A value on a threshold goes up."""
    thresholds = ((low + high) / 2 for low, high in pairwise(E3M0_VALUES))
    code = sum(abs(multiple) >= _E3M0_STEPS * threshold for threshold in thresholds)
    return (8 if multiple < 0 else 0) | code if code else 0


def _pair_table(of_first: npt.NDArray[np.uint8], of_second: npt.NDArray[np.uint8]) -> Tensor:
    """[65536]: for two bytes that lie in memory one after the other, read as one uint16, what they give together."""
    table = np.empty(2**16, np.uint8)
    for first in range(256):
        pairs = np.stack([np.full(256, first, np.uint8), np.arange(256, dtype=np.uint8)], axis=1)
        table[pairs.view(np.uint16)[:, 0]] = of_first[first] | of_second
    return torch.from_numpy(table)


_E3M0_CODES = np.array([_e3m0_code(multiple) for multiple in (*range(128), *range(-128, 0))], dtype=np.uint8)  # by byte
_E3M0_PACKED = _pair_table(_E3M0_CODES, _E3M0_CODES * np.uint8(16))
_E3M0_CODE_VALUES = np.array([*E3M0_VALUES, 0.0, *(-value for value in E3M0_VALUES[1:])], dtype=np.float32)
_E3M0_PAIRS = torch.from_numpy(  # two float32 each, as one integer
    np.stack([np.tile(_E3M0_CODE_VALUES, 16), np.repeat(_E3M0_CODE_VALUES, 16)], axis=1).view(np.int64)[:, 0]
)


class E3M0(BlockCodec):
    name = "e3m0"
    largest_code_value, most_code_value, least_code_value, steps = 1.0, 1.0, E3M0_VALUES[1], float(_E3M0_STEPS)

    def _code_bytes(self, num_values: int) -> int:
        return (num_values + 1) // 2

    def _write_codes(self, quotients: Tensor, out: Tensor) -> None:
        multiples = quotients.clamp_(max=_E3M0_STEPS - 1).to(torch.int8)  # 128 is no int8, and has 127's code
        pairs = multiples.view(torch.uint16)[: len(out)].to(torch.int32)
        torch.index_select(_E3M0_PACKED, 0, pairs, out=out)

    def _read_codes(self, codes: Tensor, out: Tensor) -> None:
        torch.index_select(_E3M0_PAIRS, 0, codes.to(torch.int32), out=out.view(torch.int64))


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
