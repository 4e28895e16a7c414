"""The OpenAPI document of the whole site."""

from functools import cache
from typing import Any, Final

from manyhands import __version__
from manyhands.protocols.native import routes as native
from manyhands.protocols.qless import routes as qless
from manyhands.protocols.qless.kinds import ID_KINDS
from manyhands.protocols.taskcluster import routes as taskcluster
from manyhands.site import routes as site
from manyhands.web import openapi

APIS: Final = (native.API, qless.API, taskcluster.API, site.API)
DESCRIPTION: Final = (
    "Every answer of the native API and of the qless API is one JSON object with `results`; "
    "with `error`, if there was one. Items of a batch that were refused are listed in `errors`, "
    "beside the results of the others. The native API (`/api`) has durations and instants in "
    "milliseconds where their names say so, the qless API has both in seconds, instants since "
    "1970. The Taskcluster queue's API (`/0.2.0`) answers bare JSON."
)


@cache
def document(id_policy: str = "hexadecimal") -> dict[str, Any]:
    """The document for a server with this id policy."""
    info = {"title": "Manyhands", "version": __version__, "description": DESCRIPTION}
    return openapi.document(info, APIS, {"Id": ID_KINDS[id_policy]})
