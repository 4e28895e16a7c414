"""Jobs in every state, with names and payloads of every kind."""

from tests.e2e.serving import Api

# What somebody might call a queue to make a page do something.
HOSTILE = "<script>alert(1)</script>\"'&\u202egnp.exe\u202c"


def fill(api: Api) -> dict[str, str]:
    """A server that has seen something; gives ids of jobs by what is to be seen of them."""
    ids: dict[str, str] = {}

    def submit(**body) -> str:
        return api.results("submit", **body)["id"]

    ids["ready"] = submit(queue="mail", payload={"to": "ada", "n": 12345678901234567890})
    ids["tagged"] = submit(
        queue="mail",
        payload="plain text",
        tags=["news"],
        headers={"task": "resize", "<i>x</i>": "<i>y</i>"},
        priority=5,
    )
    ids["binary"] = submit(queue="mail", payload={"base64": "AAEC/w=="}, encoding="binary")
    ids["delayed"] = submit(queue="mail", payload=1, delay_ms=3_600_000)
    ids["blocked"] = submit(queue="mail", payload=2, depends_on=[ids["delayed"]])
    ids["hostile"] = submit(queue=HOSTILE, payload=HOSTILE, tags=["<b>tag</b>"])
    submit(queue="work", payload={"step": 1})
    submit(queue="work", payload={"step": 2})
    submit(queue="work", payload={"step": 3}, limits=["database"])
    submit(queue="work", payload={"step": 4})
    taken = api.results("claim", queue="work", worker="worker-1", count=4, term_ms=3_600_000)
    first, second, third, fourth = ({"id": job["id"], "token": job["token"]} for job in taken)
    api.results("complete", **first, result={"ok": True})
    why = {"code": "Timeout", "message": "no answer\nat line 7", "retry": False}
    api.results("fail", **second, **why)
    api.results("progress", **third, numerator=1, denominator=4)
    ids |= {"completed": first["id"], "failed": second["id"], "leased": third["id"]}
    api.results("cancel", ids=[fourth["id"]])
    ids["cancelled"] = fourth["id"]
    api.http.put("/api/limits/database", json={"concurrency_max": 2})
    submit(queue="again", payload={"try": 1})
    [again] = api.results("claim", queue="again", worker="worker-2", term_ms=3_600_000)
    trace = 'Traceback (most recent call last):\n  File "/srv/app.py", line 7, in run\nDBDown: gone'
    proof = {"id": again["id"], "token": again["token"]}
    api.results("log", **proof, message="connecting to the database")
    api.results("partial", **proof, payload="half of it", warning=True)
    api.results("fail", **proof, code="error", message=trace, delay_ms=3_600_000)
    ids["retrying"] = again["id"]
    # On a leap day alone: it must not submit anything while tests count jobs.
    nightly = {"queue": "reports", "cron": "0 3 29 2 *", "payload": {"all": "x" * 300}}
    api.http.put("/api/schedules/nightly", json=nightly)
    return ids
