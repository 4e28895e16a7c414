"""Types of fields in bodies and answers, with the bounds that the OpenAPI document shows. Bodies
are checked where they become commands, since error messages are better there.
"""

from typing import Annotated, Any, Final

from msgspec import Meta

from manyhands.model import limits
from manyhands.protocols.qless.identifiers import TEXT_BYTES_MAX
from manyhands.web.envelope import Whole

# Forms of ids by the server's policy. Bodies refer to the one in force.
ID_KINDS: Final[dict[str, dict[str, Any]]] = {
    "hexadecimal": {
        "type": "string",
        "pattern": f"^[0-9A-Fa-f]{{1,{limits.JOB_ID_DIGITS_MAX}}}$",
    },
    "any": {
        "type": "string",
        "minLength": 1,
        "maxLength": TEXT_BYTES_MAX,
        "description": f"printable text of up to {TEXT_BYTES_MAX} bytes",
    },
}
Id = Annotated[str, Meta(extra_json_schema={"$ref": "#/components/schemas/Id"})]
Uid = Annotated[str, Meta(pattern="^[0-9a-f]{32}$", description="the full id")]
Name = Annotated[
    str, Meta(extra_json_schema={"minLength": 1, "maxLength": limits.QUEUE_NAME_BYTES_MAX})
]
Host = Annotated[
    str, Meta(extra_json_schema={"minLength": 1, "maxLength": limits.HOLDER_NAME_BYTES_MAX})
]
Word = Annotated[str, Meta(extra_json_schema={"pattern": "^[!-~]{1,200}$"})]
Tags = Annotated[tuple[Word, ...], Meta(extra_json_schema={"maxItems": limits.TAGS_COUNT_MAX})]
Limits = Annotated[tuple[Word, ...], Meta(extra_json_schema={"maxItems": 16})]
Seconds = Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": 1_000_000})]
Priority = Annotated[float, Meta(extra_json_schema={"minimum": -1_000_000, "maximum": 1_000_000})]
Retries = Annotated[Whole, Meta(description="after the first attempt; -1: unlimited")]
