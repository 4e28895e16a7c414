"""An operator has a server stop in order: the API and the pages."""

from manyhands.access.audit import current_action
from manyhands.model.servers import Drained
from manyhands.web.envelope import Problem
from manyhands.web.sources import Sources


def drain_server(sources: Sources, name: str) -> None:
    """Records it, and has the server hand over and stop. Raises a Problem with a sentence."""
    action = current_action()
    entry = None if action is None else action.note("drain server", name, 1)
    who = "" if action is None else action.caller.name
    outcome = sources.drain(name, f"drained by {who or 'an operator'}")
    if action is not None and entry is not None:
        action.finish(entry, int(outcome is Drained.BEGUN))
    match outcome:
        case Drained.UNKNOWN:
            raise Problem(404, "unknown_server", f"no server {name[:200]!r} is up")
        case Drained.ALONE:
            raise Problem(409, "alone", f"no other server is up that could take over from {name}")
        case Drained.UNREACHED:
            sentence = f"there is no link to {name}; ask that server itself, or stop its process"
            raise Problem(409, "unreached", sentence)
        case Drained.BEGUN:
            pass
