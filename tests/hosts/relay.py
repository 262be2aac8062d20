"""A way through the network that takes time, but lets everything through: ``relay.py SECONDS PORT=HOST:PORT...``.

What arrives at PORT is passed on to HOST:PORT after SECONDS, and what comes back as well, any amount of it at a
time; so are the ends. Prints ``ready`` once it listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    """One direction of a connection, until its end."""
    on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
    clock = asyncio.get_running_loop().time

    async def arrive() -> None:
        while True:
            at, data = await on_the_way.get()
            await asyncio.sleep(at - clock())
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()

    arriving = asyncio.create_task(arrive())
    try:
        data = b"more"
        while data:
            data = await reader.read(1 << 20)
            on_the_way.put_nowait((clock() + delay, data))
        await arriving
    except OSError:
        writer.transport.abort()
    finally:
        arriving.cancel()


async def serve(port: int, host: str, target: int, delay: float) -> asyncio.Server:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.ExitStack() as closing:
            closing.callback(writer.close)
            try:
                far_reader, far_writer = await asyncio.open_connection(host, target)
            except OSError:
                return
            closing.callback(far_writer.close)
            await asyncio.gather(pass_on(reader, far_writer, delay), pass_on(far_reader, writer, delay))

    return await asyncio.start_server(connected, None, port)


async def main() -> None:
    delay, *ways = sys.argv[1:]
    for way in ways:
        port, _, target = way.partition("=")
        host, _, target_port = target.rpartition(":")
        await serve(int(port), host, int(target_port), float(delay))
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
