"""The other side of CURVE, as RFC 26 has it; for tests, which may spoil any part of it."""

import os

from nacl.bindings import crypto_box, crypto_box_keypair, crypto_box_open

from manyhands.access.curve_keys import CurveKeys
from manyhands.net.zmtp import command, properties

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)


def number(nonce: int) -> bytes:
    return nonce.to_bytes(8, "big")


class CurveClient:
    """One connection."""

    def __init__(self, keys: CurveKeys, server_key: bytes) -> None:
        self.keys = keys
        self.server_key = server_key
        self.short_public, self.short_secret = crypto_box_keypair()
        self.nonce = 2
        self.cookie = self.server_short_key = b""

    def hello(self, nonce: int = 1) -> bytes:
        box = crypto_box(
            bytes(64), b"CurveZMQHELLO---" + number(nonce), self.server_key, self.short_secret
        )
        return command(b"HELLO", b"\1\0" + bytes(72) + self.short_public + number(nonce) + box)

    def take_welcome(self, frame: bytes) -> None:
        assert frame[:10] == b"\x04\xa8\x07WELCOME"
        nonce, box = frame[10:26], frame[26:]
        opened = crypto_box_open(box, b"WELCOME-" + nonce, self.server_key, self.short_secret)
        self.server_short_key, self.cookie = opened[:32], opened[32:]

    def vouch(self, short_key: bytes = b"", server_key: bytes = b"", secret: bytes = b"") -> bytes:
        nonce = os.urandom(16)
        content = (short_key or self.short_public) + (server_key or self.server_key)
        secret = secret or self.keys.secret
        return nonce + crypto_box(content, b"VOUCH---" + nonce, self.server_short_key, secret)

    def initiate(self, nonce: int = 2, vouch: bytes = b"", cookie: bytes = b"") -> bytes:
        content = self.keys.public + (vouch or self.vouch()) + properties(b"REQ", b"me")
        box = crypto_box(
            content, b"CurveZMQINITIATE" + number(nonce), self.server_short_key, self.short_secret
        )
        return command(b"INITIATE", (cookie or self.cookie) + number(nonce) + box)

    def read_ready(self, frame: bytes) -> bytes:
        body = frame[2:]
        assert body[:6] == b"\x05READY"
        nonce = body[6:14]
        return crypto_box_open(
            body[14:], b"CurveZMQREADY---" + nonce, self.server_short_key, self.short_secret
        )

    def message(self, *frames: bytes, nonce: int | None = None) -> bytes:
        last = len(frames) - 1
        return b"".join(
            self.frame(int(index < last), content, nonce) for index, content in enumerate(frames)
        )

    def frame(self, flags: int, content: bytes, nonce: int | None = None) -> bytes:
        self.nonce += 1
        used = number(self.nonce if nonce is None else nonce)
        box = crypto_box(
            bytes((flags,)) + content,
            b"CurveZMQMESSAGEC" + used,
            self.server_short_key,
            self.short_secret,
        )
        body = b"\x07MESSAGE" + used + box
        if len(body) < 256:
            return bytes((0, len(body))) + body
        return b"\x02" + len(body).to_bytes(8, "big") + body

    def read(self, data: bytes) -> list[tuple[int, bytes]]:
        """All frames in what the server sent, with their flags."""
        found = []
        while data:
            head = 9 if data[0] & 2 else 2
            size = int.from_bytes(data[1:head], "big")
            body, data = data[head : head + size], data[head + size :]
            assert body[:8] == b"\x07MESSAGE"
            opened = crypto_box_open(
                body[16:],
                b"CurveZMQMESSAGES" + body[8:16],
                self.server_short_key,
                self.short_secret,
            )
            found.append((opened[0], opened[1:]))
        return found
