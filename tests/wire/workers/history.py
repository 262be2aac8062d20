"""A client of raw requests that writes down what it asked, what it was told, and when; no torch, so it starts fast.

Arguments: port, own number, number of batches, requests in a batch (sent at once), number of keys, which requests
("all"; "kept": those for values that a proxy keeps, which are read more often than written). Prints "ready", and waits
for a line on stdin before it begins. Then prints a list with an entry for each operation: name, key, arguments,
result, begin and end (ns).
"""

import json
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from kits.wire import wire_client as wire

now = time.monotonic_ns
Entry = list[object]  # as it is printed


def choose(dice: random.Random, client: int, turn: int, keys: int, known: dict[str, str]) -> tuple[Entry, bytes]:
    """An operation and its request."""
    number = dice.randrange(keys)
    counter = number % 2 == 0  # these hold numbers, the others texts
    key, value = f"/key{number}", str(dice.randrange(1000)) if counter else f"<{client}.{turn}>"
    name = dice.choice(["set", "get", "get", "compare_set", "compare_set", *(["add"] * 3 if counter else ["append"])])
    raw = key.encode(), value.encode()
    if name == "set":
        return [name, key, [value]], wire.set_(*raw)
    if name == "append":
        return [name, key, [value]], wire.append(*raw)
    if name == "get":
        return [name, key, []], wire.get(raw[0])
    if name == "add":
        delta = dice.randint(-5, 5)
        return [name, key, [delta]], wire.add(raw[0], delta)
    old = known.get(key, "")
    return [name, key, [old, value]], wire.compare_set(raw[0], old.encode(), raw[1])


def choose_kept(dice: random.Random, client: int, turn: int, keys: int, _: dict[str, str]) -> tuple[Entry, bytes]:
    """An operation on a value that only SET writes, and its request."""
    key = f"/key{dice.randrange(keys)}"
    raw = key.encode()
    (name,) = dice.choices(["set", "get", "check", "delete"], [10, 70, 16, 4])
    if name == "set":
        value = f"<{client}.{turn}>"
        return [name, key, [value]], wire.set_(raw, value.encode())
    if name == "check":
        return [name, key, []], wire.keyed(wire.CHECK, [raw])
    return [name, key, []], wire.get(raw) if name == "get" else wire.delete(raw)


def answer(connection: wire.Raw, name: object) -> object:
    if name == "check":
        return connection.receive(1)[0]
    return connection.receive_i64() if name in ("add", "delete") else connection.receive_text().decode()


def main(port: int, client: int, batches: int, size: int, keys: int, requests: str) -> None:
    choice = {"all": choose, "kept": choose_kept}[requests]
    dice = random.Random(client)
    connection = wire.Raw(port)
    known: dict[str, str] = {}
    done: list[Entry] = []
    silent: list[Entry] = []  # not answered: done by the time that something after it is
    print("ready", flush=True)
    sys.stdin.readline()
    for batch in range(batches):
        asked = [choice(dice, client, batch * size + place, keys, known) for place in range(size)]
        begin = now()
        connection.send(b"".join(request for _, request in asked))
        for entry, _ in asked:
            done.append(entry)
            if entry[0] in ("set", "append"):
                entry += [None, begin, None]
                silent.append(entry)
                continue
            result = answer(connection, entry[0])
            end = now()
            known[str(entry[1])] = str(result)
            entry += [result, begin, end]
            for earlier in silent:
                earlier[-1] = end
            silent.clear()
    connection.fence()
    for earlier in silent:
        earlier[-1] = now()
    print(json.dumps(done))
    connection.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:-1]), sys.argv[-1])
