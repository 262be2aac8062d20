"""Passes on what clients and a server say to each other, and prints it: C or S, number of the connection, bytes in hex.

A process of its own: torch's client holds the GIL while it waits for some answers. Argument: the server's port. Prints
its own port first; ends when stdin does.
"""

import socket
import sys
import threading

lock = threading.Lock()
threads: list[threading.Thread] = []


def pump(source: socket.socket, target: socket.socket, who: str, number: int) -> None:
    try:
        while data := source.recv(65536):
            with lock:  # before it is passed on: an answer never stands before its question
                print(who, number, data.hex(), flush=True)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # one end is gone; the other notices


def accept(listener: socket.socket, server_port: int) -> None:
    number = 0
    while True:
        client, _ = listener.accept()
        number += 1
        server = socket.create_connection(("127.0.0.1", server_port))
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, target, who in ((client, server, "C"), (server, client, "S")):
            thread = threading.Thread(target=pump, args=(source, target, who, number), daemon=True)
            thread.start()
            threads.append(thread)


def main(server_port: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=accept, args=(listener, server_port), daemon=True).start()
    sys.stdin.read()
    for thread in threads:
        thread.join(20)  # at once, unless a test has failed and its clients are still there


if __name__ == "__main__":
    main(int(sys.argv[1]))
