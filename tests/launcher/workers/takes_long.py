"""Two ranks of a gloo group: the first takes SECONDS for each of several things, while the other waits for it.

Compiling (in processes of its own), loading (by a process that is waited for), evaluating, computing (one call of
native code), and saving.

``--really``: what a training script does instead: torch.compile with nothing cached, a DataLoader with processes, a
model that is evaluated, a checkpoint that is written to the disk. Each takes what it takes, at least SECONDS. By hand,
as it needs much processor time:

    rdzv-run --nproc-per-node=2 --hang-timeout=2 tests/launcher/workers/takes_long.py 3 --really
"""

import multiprocessing
import os
import subprocess
import sys
import time

import quick_torch  # noqa: F401
import torch
import torch.distributed as dist

PROGRAM = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass"


def compile_(until):
    while time.monotonic() < until:
        subprocess.run([sys.executable, "-S", "-c", PROGRAM], check=True)
        time.sleep(0.2)


def load(until):
    context = multiprocessing.get_context("fork")
    batches = context.Queue()
    context.Process(target=load_one, args=(batches, until), daemon=True).start()
    batches.get()


def load_one(batches, until):
    while time.monotonic() < until:
        burst = time.process_time() + 0.05
        while time.process_time() < burst:
            pass
        time.sleep(0.1)
    batches.put("loaded")


def evaluate(until):
    right = 0
    while time.monotonic() < until:
        right += 1


def compute(until):
    matrix = torch.rand(150, 150)
    start = time.monotonic()
    torch.linalg.svdvals(matrix.expand(4, 150, 150))
    each = (time.monotonic() - start) / 4
    torch.linalg.svdvals(matrix.expand(max(1, int((until - start) / each)), 150, 150))


def save(until):
    with open(os.devnull, "wb") as file:
        while time.monotonic() < until:
            file.write(bytes(2**16))
            file.flush()
            time.sleep(0.1)


def compile_really(until):
    from torch._inductor.utils import fresh_cache

    with fresh_cache():
        while time.monotonic() < until:
            torch._dynamo.reset()
            model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)), torch.nn.GELU())
            torch.compile(model)(torch.rand(8, 64)).sum().backward()


class Decoded(torch.utils.data.Dataset):
    """Images, each of which takes a while to decode."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        burst = time.process_time() + 0.05
        while time.process_time() < burst:
            pass
        return torch.rand(3, 32, 32), index % 10


def load_really(until):
    while time.monotonic() < until:
        for _ in torch.utils.data.DataLoader(Decoded(), batch_size=32, num_workers=2):
            pass


def evaluate_really(until):
    model, right = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.Flatten(), torch.nn.Linear(28800, 10)), 0
    with torch.inference_mode():
        while time.monotonic() < until:
            images, labels = torch.rand(64, 3, 32, 32), torch.randint(10, (64,))
            right += int((model(images).argmax(1) == labels).sum())


def save_really(until):
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        while time.monotonic() < until:
            file.seek(0)
            torch.save({"model": torch.rand(4, 2**20), "step": 7}, file)
            file.flush()
            os.fsync(file.fileno())


ALL = (compile_, load, evaluate, compute, save)
REALLY = (compile_really, load_really, evaluate_really, save_really)
torch.set_num_threads(1)
dist.init_process_group("gloo")
for each in REALLY if "--really" in sys.argv else ALL:
    if dist.get_rank() == 0:
        start = time.monotonic()
        each(start + float(sys.argv[1]))
        sys.stdout.write(f"done: {each.__name__} in {time.monotonic() - start:.1f} s\n")
        sys.stdout.flush()
    dist.barrier()
time.sleep(0.1)
dist.destroy_process_group()
