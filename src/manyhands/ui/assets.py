"""Files that pages load: read once, named by their content, sent gzipped to browsers that accept
it.
"""

import gzip
import hashlib
from pathlib import Path
from typing import Final

from manyhands.web.envelope import Problem
from manyhands.web.exchange import Exchange

_FOLDER: Final = Path(__file__).parent / "static"
_KINDS: Final = {
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".LICENSE": b"text/plain; charset=utf-8",
}
_FOR_EVER: Final = b"public, max-age=31536000, immutable"


class _Asset:
    """One file."""

    def __init__(self, file: Path) -> None:
        self.content = file.read_bytes()
        self.packed = gzip.compress(self.content, 9, mtime=0)
        self.version = hashlib.sha256(self.content).hexdigest()[:12]
        self.etag = f'"{self.version}"'.encode()
        self.kind = _KINDS[file.suffix]


class Assets:
    """All files below ``static``."""

    def __init__(self) -> None:
        self._by_name = {
            file.relative_to(_FOLDER).as_posix(): _Asset(file)
            for file in sorted(_FOLDER.rglob("*"))
            if file.suffix in _KINDS
        }

    def url(self, name: str) -> str:
        """Its address, which changes with its content."""
        return f"/ui/static/{name}?v={self._by_name[name].version}"

    async def answer(self, exchange: Exchange, name: str) -> None:
        """Sends a file, unless the peer has it."""
        asset = self._by_name.get(name)
        if asset is None:
            raise Problem(404, "not_found", f"there is no file {name[:200]!r} here")
        asked_by_content = exchange.query_string == f"v={asset.version}".encode()
        headers = [
            (b"content-type", asset.kind),
            (b"etag", asset.etag),
            (b"cache-control", _FOR_EVER if asked_by_content else b"no-cache"),
            (b"x-content-type-options", b"nosniff"),
            (b"vary", b"accept-encoding"),
        ]
        if exchange.headers.get(b"if-none-match") == asset.etag:
            await exchange.send_bytes(304, headers, b"")
            return
        body = asset.content
        if takes_gzip(exchange):
            headers.append((b"content-encoding", b"gzip"))
            body = asset.packed
        await exchange.send_bytes(200, headers, body)


def takes_gzip(exchange: Exchange) -> bool:
    """Whether the peer accepts gzip."""
    offered = exchange.headers.get(b"accept-encoding", b"").replace(b" ", b"").lower()
    return any(part in (b"gzip", b"gzip;q=1.0", b"*") for part in offered.split(b","))
