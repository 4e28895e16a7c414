"""Fields sent by a creator that are not part of a job (D14)."""

import msgspec
from msgspec import Struct


class Kept(Struct, frozen=True, omit_defaults=True):
    """Stored as the metadata of the job."""

    log: tuple[tuple[int, int], ...] = ()
    pred_locations: dict[str, str] = {}


encode_kept = msgspec.json.Encoder().encode
decode_kept = msgspec.json.Decoder(Kept).decode
