"""A file of text, line by line in bounded memory, whatever it is packed with and however it ends."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path

_PIECE = 1 << 20  # bytes
_PACKED_PIECE = 1 << 14
_HEAD = 1 << 18  # bytes that tell the format
LONGEST_LINE = 1 << 17  # characters; no log has longer ones, a file without line ends has
MOST_BYTES = 1 << 30  # of a file that can only be read as a whole
MOST_TEXT = 1 << 28  # characters of one scrape: what an exporter of ten thousand cards writes is a tenth of it
LONG_LINE = f"expected a line of at most {LONGEST_LINE} characters, got a longer one"
_GZIP = b"\x1f\x8b"
_TORN = (OSError, EOFError, zlib.error)


class TextFile:
    """A file, unpacked and decoded anew on each pass. One pass at the start learns its hash and how it begins and ends.

    Attributes:
        path: where it lies.
        digest: SHA-256 of the unpacked content, hexadecimal.
        head: the first bytes of the content.
        size: bytes of the content.
        torn: why the end is missing (a packed file that was cut short); empty where nothing is.

    Raises:
        OSError: it cannot be opened or read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn = ""
        digest = hashlib.sha256()
        head, size = b"", 0
        for piece in self._pieces():
            digest.update(piece)
            size += len(piece)
            if len(head) < _HEAD:
                head = (head + piece)[:_HEAD]
        self.digest, self.head, self.size = digest.hexdigest(), head, size

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield (number from 1, line). A line that is longer than any log's is cut: it reads as torn."""
        wide = self.head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        decoder = codecs.getincrementaldecoder("utf-16" if wide else "utf-8-sig")("replace")
        rest, number = "", 0
        for piece in self._pieces():
            text = decoder.decode(piece)
            if len(rest) > LONGEST_LINE:  # of what is cut off nothing is looked at but where it ends
                end = text.find("\n")
                text = text[end:] if end >= 0 else ""
            *whole, rest = (rest + text).split("\n")
            for line in whole:
                number += 1
                yield number, line.rstrip("\r")
            rest = rest[: LONGEST_LINE + 1]
        rest += decoder.decode(b"", final=True)
        if rest:
            yield number + 1, rest.rstrip("\r")

    def content(self) -> bytes:
        """Return all of it.

        Raises:
            ValueError: it is too big to be read as a whole.
        """
        if self.size > MOST_BYTES:
            raise ValueError(f"expected at most {MOST_BYTES >> 20} MiB, got {self.size >> 20}: split it")
        return b"".join(self._pieces())

    def text(self) -> str:
        """Return all of it as text; what is no text is replaced.

        Raises:
            ValueError: it is too big to be read as a whole.
        """
        return decoded(self.content())

    def text_of_lines(self) -> tuple[str, list[int]]:
        """Return all of it as text, and the numbers of lines that are longer than any log's: these are left empty.

        Raises:
            ValueError: it is too big to be read as a whole.
        """
        kept: list[str] = []
        long: list[int] = []
        size = 0
        for number, line in self.lines():
            if len(line) > LONGEST_LINE:
                long.append(number)
                line = ""  # noqa: PLW2901
            kept.append(line)
            size += len(line) + 1
            if size > MOST_TEXT:
                raise ValueError(f"expected at most {MOST_TEXT >> 20} MiB of text, got more: split it")
        return "\n".join((*kept, "")), long

    def _pieces(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            packed = file.read(2) == _GZIP
            file.seek(0)
            unpacked = gzip.GzipFile(fileobj=file) if packed else None
            while True:
                try:
                    # Of a packed file a little at a time: what was unpacked before a tear must not be lost with it.
                    piece = file.read(_PIECE) if unpacked is None else unpacked.read1(_PACKED_PIECE)
                except _TORN as error:
                    if not packed:
                        raise
                    self.torn = f"it is cut short or damaged, what follows is lost: {error}"
                    return
                if not piece:
                    return
                yield piece


def decoded(content: bytes) -> str:
    """Return text: UTF-8, or UTF-16 where a byte order mark says so; what is no text is replaced."""
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if wide else "utf-8-sig", errors="replace").replace("\r\n", "\n")


def said(path: Path) -> str:
    """Return a path as text; bytes of a name that are no text are replaced."""
    return str(path).encode("utf-8", "replace").decode("utf-8")
