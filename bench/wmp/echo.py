"""The ceiling: a ROUTER that sends every message back, and nothing else.

python bench/wmp/echo.py FILE      binds a free port and writes its address into FILE
"""

import sys
from pathlib import Path

import zmq


def main(file: Path) -> None:
    router = zmq.Context().socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    draft = file.with_suffix(".part")
    draft.write_text(f"127.0.0.1:{port}")
    draft.rename(file)
    while True:
        router.send_multipart(router.recv_multipart())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
