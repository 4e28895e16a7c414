"""The records that a command will probably need, so that they are read together."""

from manyhands.model.commands import Command, Conclude, Submit


def ids_of(command: Command) -> list[str]:
    """Ids of the jobs that a command names. One too many costs little, a missing one is noticed."""
    found: list[str] = []
    if isinstance(command, Submit):
        for item in command.items:
            if item.id_chosen:
                found.append(item.job_id)
            found += item.depends_on
    elif isinstance(command, Conclude):
        found += [item.job_id for item in command.items]
    else:
        job_id = getattr(command, "job_id", None)
        if isinstance(job_id, str):
            found.append(job_id)
        found += getattr(command, "job_ids", None) or ()
    return [job_id for job_id in found if "\0" not in job_id]
