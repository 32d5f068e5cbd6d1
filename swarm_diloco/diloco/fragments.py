"""Where each parameter lies in the flat vector θ, and how θ is cut into fragments and parts.

θ holds every trainable parameter once, in order of sorted names, each row-major. A fragment is what one round syncs, a
part is the unit of transfer within it.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from swarm_diloco.errors import RecordError

MAX_LAYOUT_BYTES = 2**24  # of a layout file: 100,000 parameters with long names
MAX_VALUES = 2**40
MAX_DIMENSIONS = 16


@dataclass(frozen=True)
class ParameterLayout:
    """Names and shapes of all trainable parameters, sorted by name. Raises ValueError if they are not."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    num_fragments: int = 1

    def __post_init__(self) -> None:
        if self.num_fragments != 1:
            raise ValueError(f"a layout has one fragment in this version, not {self.num_fragments}")
        if not self.names or len(self.names) != len(self.shapes):
            raise ValueError(f"{len(self.names)} parameter names, {len(self.shapes)} shapes")
        for name, shape in zip(self.names, self.shapes, strict=True):
            if not isinstance(name, str) or not name.isprintable() or not name:
                raise ValueError(f"a parameter's name is printable text, not {name!r:.80}")
            if len(shape) > MAX_DIMENSIONS or not all(type(size) is int and 1 <= size <= MAX_VALUES for size in shape):
                raise ValueError(f"parameter {name}: a shape is up to {MAX_DIMENSIONS} positive integers")
        if any(first >= second for first, second in pairwise(self.names)):
            raise ValueError("parameter names are not sorted, or one comes twice")
        if self.num_values > MAX_VALUES:
            raise ValueError(f"{self.num_values} values where at most {MAX_VALUES} are allowed")

    @classmethod
    def of(cls, names_shapes: Iterable[tuple[str, Sequence[int]]], num_fragments: int = 1) -> "ParameterLayout":
        """The layout of (name, shape) pairs in any order."""
        pairs = sorted((name, tuple(shape)) for name, shape in names_shapes)
        return cls(tuple(name for name, _ in pairs), tuple(shape for _, shape in pairs), num_fragments)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Values of each parameter."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def num_values(self) -> int:
        return sum(self.sizes)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Index in θ of each parameter's first value."""
        offsets = [0]
        for size in self.sizes[:-1]:
            offsets.append(offsets[-1] + size)
        return tuple(offsets)

    @property
    def fragment_slices(self) -> tuple[slice, ...]:
        """Where in θ each fragment lies."""
        return (slice(0, self.num_values),)

    def part_slices(self, fragment: int, part_values: int) -> tuple[slice, ...]:
        """The fragment's parts, counted from its start: `part_values` each, the last one what is left."""
        if part_values < 1:
            raise ValueError(f"a part has at least one value, not {part_values}")
        bounds = self.fragment_slices[fragment]
        num_values = bounds.stop - bounds.start
        return tuple(slice(start, min(start + part_values, num_values)) for start in range(0, num_values, part_values))

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Each parameter as a view of `flat` (1-D, contiguous, num_values long, any dtype and device): no copy."""
        self._check_flat(flat)
        return {
            name: flat[offset : offset + size].view(shape)
            for name, shape, offset, size in zip(self.names, self.shapes, self.offsets, self.sizes, strict=True)
        }

    def flatten(self, named: Mapping[str, Tensor], out: Tensor) -> Tensor:
        """Copy the parameters into `out` (1-D, num_values long), converting dtype and device, and return it.

        Raises ValueError unless `named` has exactly the layout's names and shapes; `out` is then untouched.
        """
        views = self.views(out)
        if named.keys() != views.keys():
            difference = sorted(named.keys() ^ views.keys())
            raise ValueError(f"parameters and layout differ in {len(difference)} names, first {difference[0]}")
        for name, view in views.items():
            if named[name].shape != view.shape:
                raise ValueError(f"parameter {name}: {tuple(named[name].shape)}, the layout says {tuple(view.shape)}")
        with torch.no_grad():
            for name, view in views.items():
                view.copy_(named[name])
        return out

    def _check_flat(self, flat: Tensor) -> None:
        if flat.shape != (self.num_values,) or not flat.is_contiguous():
            raise ValueError(f"not a contiguous vector of {self.num_values} values, but {tuple(flat.shape)}")

    def encode(self) -> bytes:
        """The file "layout.json": [[name, [shape]], …], without spaces, in ASCII."""
        pairs = [[name, list(shape)] for name, shape in zip(self.names, self.shapes, strict=True)]
        return json.dumps(pairs, separators=(",", ":"), ensure_ascii=True).encode("ascii")

    @classmethod
    def decode(cls, data: bytes, num_fragments: int = 1) -> "ParameterLayout":
        """Read bytes that may come from anybody. Raises RecordError unless they are some layout's `encode`."""
        if len(data) > MAX_LAYOUT_BYTES:
            raise RecordError(f"layout: {len(data)} bytes where at most {MAX_LAYOUT_BYTES} are allowed")
        try:
            pairs = json.loads(data.decode("ascii"))
            layout = cls(tuple(name for name, _ in pairs), tuple(tuple(shape) for _, shape in pairs), num_fragments)
        except (ValueError, TypeError, RecursionError) as error:
            raise RecordError(f"layout: {error}") from error
        if layout.encode() != data:
            raise RecordError("layout: not in canonical form")
        return layout
