"""python3-gearman as the program of a test.

work HOST:PORT PREFIX         serves PREFIX.upper and PREFIX.die until it is stopped
run HOST:PORT FUNCTION DATA   runs a job, prints its result
send HOST:PORT FUNCTION DATA  submits a background job, prints its handle
admin HOST:PORT               prints what the server tells about itself
"""

import json
import sys

from python3_gearman import JOB_COMPLETE, GearmanAdminClient, GearmanClient, GearmanWorker


def upper(_worker, job) -> str:
    return job.data.upper()


def die(_worker, _job) -> str:
    raise RuntimeError("it broke")


class Worker(GearmanWorker):
    """One that reports what went wrong and goes on."""

    def on_job_exception(self, current_job, exc_info) -> bool:  # noqa: ARG002 - its interface
        self.send_job_failure(current_job)
        return True


def main(mode: str, server: str, function: str = "", data: str = "") -> int:
    if mode == "work":
        worker = Worker([server])
        worker.register_task(f"{function}.upper", upper)
        worker.register_task(f"{function}.die", die)
        worker.work()
    elif mode == "admin":
        admin = GearmanAdminClient([server])
        admin.ping_server()
        told = {"version": admin.get_version(), "status": admin.get_status()}
        sys.stdout.write(json.dumps({**told, "workers": admin.get_workers()}))
    else:
        background = mode == "send"
        request = GearmanClient([server]).submit_job(function, data, background=background)
        if background:
            sys.stdout.write(str(request.job.handle))
        elif request.state == JOB_COMPLETE:
            sys.stdout.write(request.result)
        else:
            sys.stdout.write("failed")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
