"""The tasks that sleep and compute, without a queue: 500 coroutines, or one process a core."""

import asyncio
import sys
from time import monotonic

from peer import TEXT
from tasks import burn, nap


async def naps(count: int, coroutines: int) -> None:
    async def some() -> None:
        for _ in range(count // coroutines):
            await nap(TEXT)

    await asyncio.gather(*(some() for _ in range(coroutines)))


def main() -> None:
    name, count, coroutines = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    began = monotonic()
    if name == "nap":
        asyncio.run(naps(count, coroutines))
    else:
        for _ in range(count):
            burn(TEXT)
    print(count / (monotonic() - began))


main()
