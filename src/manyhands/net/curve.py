"""CURVE, the encryption of ZeroMQ (CurveZMQ, RFC 26), on the server's side, without I/O.

A `CurveHandshake` proves to each side that the other has its keys, and agrees on keys for this
connection alone. A `CurveBox` encrypts what follows, a `CurveDecoder` decrypts it.
"""

import hmac
import os
from collections.abc import Sequence
from typing import Final

from nacl.bindings import (
    crypto_box,
    crypto_box_afternm,
    crypto_box_beforenm,
    crypto_box_keypair,
    crypto_box_open,
    crypto_box_open_afternm,
)
from nacl.exceptions import CryptoError

from manyhands.access.curve_keys import CurveKeys
from manyhands.net.zmtp import Decoder, RefusedError, command

_VERSION: Final = b"\x01\x00"
_HELLO_BYTES: Final = 194  # without its name
_COOKIE_BYTES: Final = 96
_VOUCH_BYTES: Final = 96
_INITIATE_BYTES_MIN: Final = _COOKIE_BYTES + 8 + 16 + 32 + _VOUCH_BYTES
_MESSAGE: Final = b"\x07MESSAGE"
_HEAD_BYTES: Final = len(_MESSAGE) + 8
_OVERHEAD_BYTES: Final = _HEAD_BYTES + 16 + 1  # of a frame, with its flags
_MORE, _COMMAND = 1, 2


class CurveHandshake:
    """One connection, from HELLO to READY."""

    def __init__(self, keys: CurveKeys) -> None:
        self._keys = keys
        self._cookie = b""
        self._their_short_key = b""
        self._short_public, self._short_secret = crypto_box_keypair()
        self._nonce = 0  # the highest that the peer has used
        self.peer_key = b""  # proved by `take_initiate`
        self.box: CurveBox | None = None  # what encrypts once the handshake is complete

    def take_hello(self, body: bytes) -> bytes:
        """Returns WELCOME. Raises `RefusedError` if the peer has not this server's public key."""
        if len(body) != _HELLO_BYTES or body[:2] != _VERSION:
            raise RefusedError("a HELLO that is not one of CURVE 1.0", reply=True)
        their_key, nonce, box = body[74:106], body[106:114], body[114:]
        self._take_nonce(nonce)
        try:
            signed = crypto_box_open(box, b"CurveZMQHELLO---" + nonce, their_key, self._keys.secret)
        except (CryptoError, ValueError):
            raise RefusedError(
                "the HELLO cannot be decrypted: the peer has another server's key", reply=True
            ) from None
        if any(signed):
            raise RefusedError("a HELLO that is not one of CURVE 1.0", reply=True)
        self._their_short_key = their_key
        # It need not carry any state: that is kept here, in the connection, which has a time limit.
        self._cookie = os.urandom(_COOKIE_BYTES)
        long_nonce = os.urandom(16)
        box = crypto_box(
            self._short_public + self._cookie,
            b"WELCOME-" + long_nonce,
            their_key,
            self._keys.secret,
        )
        return command(b"WELCOME", long_nonce + box)

    def take_initiate(self, body: bytes) -> bytes:
        """Returns the peer's properties, once it has proved that it has its permanent key."""
        if len(body) < _INITIATE_BYTES_MIN:
            raise RefusedError("an INITIATE that ends too early", reply=True)
        if not hmac.compare_digest(body[:_COOKIE_BYTES], self._cookie):
            raise RefusedError("an INITIATE of another handshake", reply=True)
        nonce = body[_COOKIE_BYTES : _COOKIE_BYTES + 8]
        self._take_nonce(nonce)
        theirs, ours = self._their_short_key, self._short_secret
        try:
            said = crypto_box_open(
                body[_COOKIE_BYTES + 8 :], b"CurveZMQINITIATE" + nonce, theirs, ours
            )
            their_key, vouch = said[:32], said[32 : 32 + _VOUCH_BYTES]
            vouched = crypto_box_open(vouch[16:], b"VOUCH---" + vouch[:16], their_key, ours)
        except (CryptoError, ValueError):
            raise RefusedError("an INITIATE that cannot be decrypted", reply=True) from None
        # The peer vouches for its short key towards this very server.
        if not hmac.compare_digest(vouched, theirs + self._keys.public):
            raise RefusedError("an INITIATE with the vouch of another", reply=True)
        self.peer_key = their_key
        return said[32 + _VOUCH_BYTES :]

    def _take_nonce(self, nonce: bytes) -> None:
        number = int.from_bytes(nonce, "big")
        if number <= self._nonce:
            raise RefusedError("a nonce that was used before", reply=True)
        self._nonce = number

    def ready(self, properties: bytes) -> bytes:
        """The command that ends the handshake."""
        shared = crypto_box_beforenm(self._their_short_key, self._short_secret)
        self.box = CurveBox(shared, self._nonce)
        return self.box.ready(properties)


class CurveBox:
    """Encrypts frames for a peer, and decrypts its own. Every one has a nonce of its own, in
    order.
    """

    __slots__ = ("_nonce", "_shared", "_their_nonce")

    def __init__(self, shared: bytes, their_nonce: int) -> None:
        self._shared = shared
        self._nonce = 0
        self._their_nonce = their_nonce

    def _next_nonce(self) -> bytes:
        self._nonce += 1
        return self._nonce.to_bytes(8, "big")

    def ready(self, properties: bytes) -> bytes:
        """The command that ends the handshake."""
        nonce = self._next_nonce()
        box = crypto_box_afternm(properties, b"CurveZMQREADY---" + nonce, self._shared)
        return command(b"READY", nonce + box)

    def encode(self, route: Sequence[bytes], body: bytes) -> bytes:
        """Encodes a message, as `zmtp.encode` does."""
        parts = [self._seal(_MORE, frame) for frame in route[1:]]
        parts.append(self._seal(0, body))
        return b"".join(parts)

    def encode_command(self, frame: bytes) -> bytes:
        """Encrypts a command frame, such as PING, of fewer than 256 bytes."""
        return self._seal(_COMMAND, frame[2:])

    def _seal(self, flags: int, content: bytes) -> bytes:
        nonce = self._next_nonce()
        box = crypto_box_afternm(
            bytes((flags,)) + content, b"CurveZMQMESSAGES" + nonce, self._shared
        )
        size = _HEAD_BYTES + len(box)
        head = bytes((0, size)) if size < 256 else b"\x02" + size.to_bytes(8, "big")
        return b"".join((head, _MESSAGE, nonce, box))

    def open(self, frame: bytes) -> bytes:
        """Decrypts the content of a frame and returns it as a frame without encryption. Raises
        ValueError with a sentence.
        """
        if len(frame) < _OVERHEAD_BYTES or not frame.startswith(_MESSAGE):
            raise ValueError("a frame that is not encrypted")
        nonce = frame[len(_MESSAGE) : _HEAD_BYTES]
        number = int.from_bytes(nonce, "big")
        if number <= self._their_nonce:
            raise ValueError("a nonce that was used before")
        try:
            content = crypto_box_open_afternm(
                frame[_HEAD_BYTES:], b"CurveZMQMESSAGEC" + nonce, self._shared
            )
        except CryptoError:
            raise ValueError("a frame that cannot be decrypted") from None
        self._their_nonce = number
        flags, size = content[0], len(content) - 1
        if flags > _COMMAND:
            raise ValueError(f"an encrypted frame with flags {flags:#04x}")
        plain = 4 if flags == _COMMAND else flags
        if size < 256:
            return bytes((plain, size)) + content[1:]
        return bytes((plain | 2,)) + size.to_bytes(8, "big") + content[1:]


class CurveDecoder(Decoder):
    """Decrypts frames; what is in them is decoded as usual."""

    def __init__(self, box: CurveBox, identity: bytes, bytes_max: int) -> None:
        super().__init__(identity, bytes_max)
        self._box = box
        self._frame_bytes_max = bytes_max + _OVERHEAD_BYTES
        self._sealed = bytearray()
        self._sealed_needed = 2

    def is_at_rest(self) -> bool:
        """Whether the next bytes begin a message, because no incomplete one is held."""
        return not self._sealed and super().is_at_rest()

    def held_bytes(self) -> int:
        """Bytes of an incomplete message."""
        return len(self._sealed) + super().held_bytes()

    def feed(self, data: bytes) -> list[list[bytes]]:
        """Takes received bytes and returns the messages they complete, in order."""
        if self.fault is not None:
            return []
        if self._sealed:
            self._sealed += data
            if len(self._sealed) < self._sealed_needed:
                return []
            data = bytes(self._sealed)
            self._sealed.clear()
        opened, at, fault = [], 0, None
        self._sealed_needed = 2
        try:
            while (end := self._end_of_frame(data, at)) is not None:
                start = at + (9 if data[at] & 2 else 2)
                opened.append(self._box.open(data[start:end]))
                at = end
        except ValueError as error:
            fault = str(error)
        messages = super().feed(b"".join(opened)) if opened else []
        if fault is not None:
            self.fault = fault
        elif at < len(data) and self.fault is None:
            self._sealed += data[at:]
        return messages

    def _end_of_frame(self, data: bytes, at: int) -> int | None:
        """Where a frame ends, or None if it is incomplete."""
        left = len(data) - at
        if left < 2:
            return None
        flags = data[at]
        # Libraries send encrypted frames as messages; the standard calls them commands.
        if flags not in (0, 2, 4, 6):
            raise ValueError(f"a frame with flags {flags:#04x}")
        head = 9 if flags & 2 else 2
        if left < head:
            self._sealed_needed = head
            return None
        size = int.from_bytes(data[at + 1 : at + head], "big")
        if size > self._frame_bytes_max:
            raise ValueError(f"a message of more than {self._bytes_max} bytes")
        if left < head + size:
            self._sealed_needed = head + size
            return None
        return at + head + size
