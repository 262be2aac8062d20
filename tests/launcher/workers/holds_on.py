"""No torch: speaks to the workers' store by raw requests.

In the first round rank 0 leaves a process behind that holds on to the round's store, and fails; in the second each
says what it finds.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from kits.wire.wire_client import CHECK, LIST_KEYS, WAIT, Closed, Raw, get, keyed, op, set_

PORT = int(os.environ["MASTER_PORT"])
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def write(path: str, text: str) -> None:
    """It is there at once as a whole."""
    Path(f"{path}.part").write_text(text)
    Path(f"{path}.part").rename(path)


def wait_for(path: str) -> str:
    while not Path(path).exists():
        time.sleep(0.05)
    return Path(path).read_text()


def first_round() -> None:
    if RANK > 0:
        with Raw(PORT) as client:
            client.socket.settimeout(120)  # others have to start, and to find each other
            write(f"first-round-{RANK}", "")
            client.until_close()
        time.sleep(600)  # until the agent restarts us
    for other in range(1, WORLD_SIZE):
        wait_for(f"first-round-{other}")
    subprocess.Popen([sys.executable, __file__, "left-behind"], start_new_session=True)
    wait_for("left-behind")
    sys.exit(3)


def left_behind() -> None:
    waiting, writing = Raw(PORT), Raw(PORT)
    waiting.socket.settimeout(120)
    waiting.send(keyed(WAIT, [b"/second"]))
    write("left-behind", "")
    try:
        while True:
            writing.send(set_(b"/first", b"round"))
            writing.fence()
    except Closed:
        found = {"told": waiting.until_close().hex()}
    new_port = int(wait_for("second-round"))
    if new_port != PORT:  # on the same port nothing tells it from a client of the new round
        try:
            Raw(PORT)
            found["again"] = "let in"
        except ConnectionRefusedError:
            found["again"] = "refused"
    write("found", json.dumps(found))


def second_round() -> None:
    with Raw(PORT) as client:
        client.socket.settimeout(120)
        if RANK == 0:
            client.send(op(LIST_KEYS))
            keys = [client.receive_text().decode() for _ in range(client.receive_i64())]
            client.send(set_(b"/second", b"round"))
            assert client.fence() == b""
            write("second-round", str(PORT))
            write("keys", json.dumps(keys))
        assert client.ask(keyed(WAIT, [b"/second"]), 1) == b"\0"
        client.send(get(b"/second"))
        value = client.receive_text().decode()
        found = json.loads(wait_for("found"))
        poisoned = client.ask(keyed(CHECK, [b"/first"]), 1) == b"\0"
    report = {"MASTER_PORT": PORT, "KEYS": json.loads(wait_for("keys")), "VALUE": value, "POISONED": poisoned}
    print(json.dumps(report | {"LEFT_BEHIND": found}), flush=True)


if sys.argv[1:] == ["left-behind"]:
    left_behind()
elif Path("left-behind").exists():
    second_round()
else:
    first_round()
