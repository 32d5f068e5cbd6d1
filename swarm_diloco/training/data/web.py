"""Lines of text files on ordinary web servers, read on from any byte after whatever goes wrong on the way."""

import http.client
import json
import re
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Sequence

from swarm_diloco.training.data.documents import documents_of_lines, text_of_line
from swarm_diloco.training.data.settings import DataSettings

TIMEOUT_SECONDS = 60.0  # without a byte
CHUNK_BYTES = 2**16
MAX_LINE_BYTES = 2**26  # a host that sends no line's end must not fill the memory
LONGEST_PATIENCE_SECONDS = 600.0  # that a host may ask for
_ROW_OF_FILES = re.compile(r"\{(\d+)\.\.(\d+)\}")


class HostError(Exception):
    """The host did not send what it has: to be tried again, not before `retry_after_seconds` if it says so."""

    def __init__(self, message: str, *, retry_after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = min(retry_after_seconds, LONGEST_PATIENCE_SECONDS)


def expand(address: str) -> tuple[str, ...]:
    """`…{00000..00127}…` as 128 addresses, padded like the first number; other addresses as they are."""
    found = _ROW_OF_FILES.search(address)
    if found is None:
        return (address,)
    first, last = found.groups()
    numbers = range(int(first), int(last) + 1)
    return tuple(f"{address[: found.start()]}{n:0{len(first)}d}{address[found.end() :]}" for n in numbers)


class WebShard:
    """Some jsonl or text files of a web server, gzipped or not, as a DocumentSource."""

    def __init__(self, settings: DataSettings, files: Sequence[str]) -> None:
        """`files`: addresses. Nothing is opened yet."""
        self._settings = settings
        self._files = tuple(files)

    @property
    def identity(self) -> str:
        return json.dumps([self._settings.format, self._settings.text_field, *self._files])

    def open(self, state: str | None = None) -> "WebReader":
        file, offset = (0, 0) if state is None else json.loads(state)
        return WebReader(self._settings, self._files, file, offset)


class WebReader:
    """A DocumentReader. Raises HostError for what the host does, DataError for a line that is no example."""

    def __init__(self, settings: DataSettings, files: Sequence[str], file: int, offset: int) -> None:
        self._settings = settings
        self._files = files
        self._file = file
        self._offset = offset  # of the uncompressed file

    def __iter__(self) -> Iterator[str]:
        while self._file < len(self._files):
            address = self._files[self._file]
            lines = self._lines(address)
            if self._settings.format == "text":
                yield from documents_of_lines(line.decode("utf-8", "replace") for line in lines)
            else:
                for line in lines:
                    if line.strip():
                        where = f"{address}, before byte {self._offset}"
                        yield text_of_line(line, self._settings.text_field, where)
            self._file, self._offset = self._file + 1, 0

    def state(self) -> str:
        return json.dumps([self._file, self._offset])

    def _lines(self, address: str) -> Iterator[bytes]:
        rest = b""
        for chunk in read_from(address, self._offset):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._offset += len(line) + 1
                yield line + b"\n"
            if len(rest) > MAX_LINE_BYTES:
                raise HostError(f"{address} has a line of more than {MAX_LINE_BYTES} bytes")
        if rest:
            self._offset += len(rest)
            yield rest


def read_from(address: str, offset: int) -> Iterator[bytes]:
    """The file's bytes from `offset` on, unpacked if the address ends in .gz. Raises HostError."""
    packed = address.endswith(".gz")
    request = urllib.request.Request(address, headers={"Accept-Encoding": "identity"})  # noqa: S310 - settings check it
    if offset and not packed:
        request.add_header("Range", f"bytes={offset}-")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310
            if response.headers.get_content_type() == "text/html":
                raise HostError(f"{address} is answered with a web page")
            skip = 0 if response.status == http.client.PARTIAL_CONTENT else offset
            content = _whole(response, address)
            for chunk in _unpacked(content, address) if packed else content:
                yield chunk[skip:]
                skip -= min(skip, len(chunk))
    except urllib.error.HTTPError as error:
        with error:
            if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and offset:
                return  # reading had come to the file's end
            seconds = error.headers.get("Retry-After", "")
            patience = float(seconds) if seconds.isdecimal() else 0.0
            raise HostError(f"{address}: {error.code} {error.reason}", retry_after_seconds=patience) from error
    except (OSError, http.client.HTTPException) as error:
        raise HostError(f"{address}: {getattr(error, 'reason', None) or error or type(error).__name__}") from error


def _whole(response: http.client.HTTPResponse, address: str) -> Iterator[bytes]:
    """The answer's bytes; HostError if they end before the length that was announced."""
    missing = response.length
    while chunk := response.read1(CHUNK_BYTES):
        if missing is not None:
            missing -= len(chunk)
        yield chunk
    if missing:
        raise HostError(f"{address} broke off, {missing} bytes before its end")


def _unpacked(content: Iterator[bytes], address: str) -> Iterator[bytes]:
    unpacking = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        for chunk in content:
            while chunk:
                if unpacking.eof:  # the file was packed in pieces
                    unpacking = zlib.decompressobj(zlib.MAX_WBITS | 16)
                yield unpacking.decompress(chunk)
                chunk = unpacking.unused_data
    except zlib.error as error:
        raise HostError(f"{address} is not gzip: {error}") from error
    if not unpacking.eof:
        raise HostError(f"{address} is gzip that breaks off")
