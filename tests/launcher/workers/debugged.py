"""Starts torch's debug server on all ranks, then rank 0 says in a line of JSON what its pages ``tcpstore`` and
``stacks`` show. Its port is the only argument."""

import json
import sys
import urllib.error
import urllib.request

import quick_torch  # noqa: F401
import torch.distributed as dist
from torch.distributed.debug import start_debug_server, stop_debug_server

port = int(sys.argv[1])


def page(name):
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=60) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            return f"{error}: {error.read().decode()}"
        except OSError:  # it does not listen yet
            pass


dist.init_process_group("gloo")
start_debug_server(port=port)
dist.barrier()
if dist.get_rank() == 0:
    print(json.dumps({name: page(name) for name in ("tcpstore", "stacks")}), flush=True)
    stop_debug_server()
dist.barrier()
dist.destroy_process_group()
