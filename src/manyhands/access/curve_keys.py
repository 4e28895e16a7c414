"""Keys of CURVE, ZeroMQ's encryption: how they are made, written and read.

Files have the form of czmq and pyzmq (``zmq.auth``), so that each can use those of the other.
"""

import re
from pathlib import Path
from typing import Final

from msgspec import Struct
from nacl.bindings import crypto_box_keypair, crypto_scalarmult_base

from manyhands.loggers import get_logger

_log = get_logger("manyhands.access")

KEY_BYTES: Final = 32
_KEY_CHARACTERS: Final = 40
_DIGITS: Final = (
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_VALUES: Final = {digit: value for value, digit in enumerate(_DIGITS)}
_LINE: Final = re.compile(r'^\s*(public|secret)-key\s*=\s*"([^"]*)"\s*$', re.MULTILINE)


class CurveKeys(Struct, frozen=True):
    """A pair of keys, 32 bytes each. Shown without the secret one."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"CurveKeys({as_text(self.public)!r}, …)"


class CurveKeyFile:
    """The keys of this server, read again when their file changes."""

    def __init__(self, file: Path) -> None:
        """Raises OSError with a sentence if the file cannot be used."""
        self._file = file
        self.keys = read_keys(file)

    def reload(self) -> None:
        """Reads the file again, for peers that connect from now on. If it cannot be used, the keys
        stay as they are.
        """
        try:
            self.keys = read_keys(self._file)
        except OSError as error:
            _log.error("the CURVE keys were not loaded again; the old ones stay", reason=str(error))
        else:
            _log.info("the CURVE keys were loaded again", public=as_text(self.keys.public))


def new_keys() -> CurveKeys:
    """A random pair."""
    return CurveKeys(*crypto_box_keypair())


def as_text(key: bytes) -> str:
    """A key in 40 characters (Z85), as users see it."""
    characters = []
    for start in range(0, len(key), 4):
        value = int.from_bytes(key[start : start + 4], "big")
        characters += [_DIGITS[value // 85**place % 85] for place in (4, 3, 2, 1, 0)]
    return "".join(characters)


def read_key(text: str) -> bytes:
    """A key from 40 characters. Raises ValueError with a sentence that does not show them."""
    if len(text) != _KEY_CHARACTERS or not all(character in _VALUES for character in text):
        raise ValueError("a CURVE key has 40 characters of Z85")
    key = b""
    for start in range(0, _KEY_CHARACTERS, 5):
        value = 0
        for character in text[start : start + 5]:
            value = value * 85 + _VALUES[character]
        if value >= 2**32:
            raise ValueError("a CURVE key has 40 characters of Z85")
        key += value.to_bytes(4, "big")
    return key


def file_text(keys: CurveKeys, *, with_secret: bool) -> str:
    """The content of a key file; without the secret, of one that may be given away."""
    lines = ["curve", f'    public-key = "{as_text(keys.public)}"']
    if with_secret:
        lines.insert(0, "#   A pair of CURVE keys. Keep this file secret.")
        lines.append(f'    secret-key = "{as_text(keys.secret)}"')
    return "\n".join(lines) + "\n"


def read_keys(file: Path) -> CurveKeys:
    """The pair in a file. Raises OSError with a sentence."""
    found = _read(file)
    try:
        secret = read_key(found["secret"])
    except KeyError:
        raise OSError(f"{file} has no secret-key of CURVE") from None
    except ValueError as error:
        raise OSError(f"the secret-key in {file} cannot be used: {error}") from None
    public = crypto_scalarmult_base(secret)
    if "public" in found and found["public"] != as_text(public):
        raise OSError(f"the public-key in {file} does not belong to its secret-key")
    return CurveKeys(public, secret)


def read_public_key(file: Path) -> bytes:
    """The public key in a file. Raises OSError with a sentence."""
    found = _read(file)
    try:
        return read_key(found["public"])
    except KeyError:
        raise OSError(f"{file} has no public-key of CURVE") from None
    except ValueError as error:
        raise OSError(f"the public-key in {file} cannot be used: {error}") from None


def _read(file: Path) -> dict[str, str]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise OSError(f"the CURVE file {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise OSError(f"the CURVE file {file} is not text") from None
    return dict(_LINE.findall(text))
