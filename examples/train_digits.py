"""Train a small network on real handwritten digits with torch's DistributedDataParallel.

An ordinary training script. Any of these works:

    rdzv-run --nproc-per-node=2 examples/train_digits.py
    torchrun --nproc-per-node=2 examples/train_digits.py
    python examples/train_digits.py

Where rdzv-plugins is installed, it asks before it saves whether its round still holds: a node that was cut off must not
overwrite what the others have written since (docs/internals/fencing.md). And it asks after each batch whether the job
is about to lose a node: then it saves at once, in the middle of an epoch (docs/guides/preemption.md). That is all it
knows of the launcher.

With --checkpoint it saves every epoch and goes on from there when its workers are restarted. On several
machines that path has to be on a file system that all of them see.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

try:
    from rdzv_plugins.worker import notice, saved, wait_until_round_holds
except ImportError:  # started by torchrun, without it

    def notice(step: int) -> None:
        return None

    def saved() -> None:
        return

    def wait_until_round_holds(timeout: float) -> bool:
        return True


try:
    from sklearn.datasets import load_digits
except ImportError as error:
    sys.exit(f"train_digits.py takes its data from scikit-learn ({error}). Install it: pip install scikit-learn")

GLOBAL_BATCH = 32
TEST_IMAGES = 360
OUTAGE_S = 60.0
"""So long an epoch waits to be saved while it is not known whether the round holds. Then it is left to a later one."""


def main() -> None:
    args = parse_arguments()
    backend, device = choose_device(args.cpu)
    if "RANK" in os.environ:  # a launcher says who is who
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    rank, world = dist.get_rank(), dist.get_world_size()
    about = f"world size {world}, restarts {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)} (of this node)"

    train, test = load_data(device)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    done = images = 0
    if args.checkpoint and os.path.exists(args.checkpoint):
        kept = torch.load(args.checkpoint, map_location=device, weights_only=True)
        network.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        done, images = kept["epoch"], kept.get("images", 0)
        say(f"rank {rank}: resumed from epoch {done}" + (f", {images} images after it" if images else ""))
    elif rank == 0:
        say(f"training from the start: {world} worker(s), {backend}, {args.epochs} epochs")

    model = DistributedDataParallel(network)
    sampler = DistributedSampler(train, world, rank, seed=0)
    loader = DataLoader(train, batch_size=max(1, GLOBAL_BATCH // world), sampler=sampler)

    def keep(epochs: int, images: int) -> None:
        """What rank 0 saves: so many epochs are done, and so many images of the next one."""
        if rank == 0 and args.checkpoint and wait_until_round_holds(OUTAGE_S):
            model, optimizing = network.state_dict(), optimizer.state_dict()
            kept = {"model": model, "optimizer": optimizing, "epoch": epochs, "images": images}
            torch.save(kept, f"{args.checkpoint}.tmp")
            if wait_until_round_holds(OUTAGE_S):  # writing took its time
                os.replace(f"{args.checkpoint}.tmp", args.checkpoint)  # whenever a worker dies, a whole one is there

    def after_batch(epoch: int, batches: int) -> None:
        """Is a node about to be taken away? Then all ranks hear of the same step."""
        step = (epoch - 1) * len(loader) + batches
        told = notice(step=step)
        if args.checkpoint and told is not None and told.step == step:
            whole = batches == len(loader)
            keep(epoch if whole else epoch - 1, 0 if whole else batches * loader.batch_size * world)
            say(f"rank {rank}: saved after batch {batches} of epoch {epoch}, since {told.reason}")
            saved()

    accuracy = measure(network, test)
    for epoch in range(done + 1, args.epochs + 1):
        start = time.monotonic()
        sampler.set_epoch(epoch)  # the order of the data depends on the epoch only, interrupted or not
        skipped = min(images // (loader.batch_size * world), len(loader) - 1)
        loss = train_epoch(model, loader, optimizer, skipped, lambda batches, epoch=epoch: after_batch(epoch, batches))
        images = 0
        accuracy = measure(network, test)
        keep(epoch, 0)
        if rank == 0:
            result = f"loss {loss:.4f}, test accuracy {100 * accuracy:.1f} %"
            say(f"epoch {epoch}/{args.epochs}: {result}, {about}")
        time.sleep(max(0.0, start + args.epoch_seconds - time.monotonic()))

    if rank == 0:
        say(f"test accuracy: {100 * accuracy:.1f} %")
    time.sleep(0.1)  # torch 2.13's gloo now and then waits for ever if a group is destroyed right after a sum
    dist.destroy_process_group()


def say(line: str) -> None:
    """One write for the whole line, so that lines of workers that share a pipe do not mix."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits, with DDP.")
    parser.add_argument("--epochs", type=int, default=15, help="passes over the training images (default 15)")
    parser.add_argument("--checkpoint", metavar="PATH", help="save here every epoch, and resume from what is there")
    parser.add_argument("--epoch-seconds", type=float, default=0, help="make every epoch last at least this long")
    parser.add_argument("--cpu", action="store_true", help="use the CPU even if there is an accelerator")
    return parser.parse_args()


def choose_device(cpu: bool) -> tuple[str, torch.device]:
    """The backend for collectives, and this worker's device."""
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    if not cpu and torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
        return "nccl", torch.device("cuda", local_rank)
    if not cpu and importlib.util.find_spec("torch_npu"):  # Ascend. Not run here: no such device was at hand
        import torch_npu

        torch_npu.npu.set_device(local_rank)
        return "hccl", torch.device("npu", local_rank)
    return "gloo", torch.device("cpu")


def load_data(device: torch.device) -> tuple[TensorDataset, TensorDataset]:
    """Training and test images: 1797 of 8 x 8 pixels, shipped with scikit-learn; split alike on every rank."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32, device=device) / 16
    labels = torch.tensor(digits.target, device=device)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).to(device)
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def train_epoch(
    model: nn.Module,
    loader: DataLoader,
    optimizer: torch.optim.Optimizer,
    skipped: int,
    after_batch: Callable[[int], None],
) -> float:
    """One pass over this rank's share of the images, but for the batches that were ``skipped``: they are done already.

    ``after_batch`` is called with the number of those that are done. Returns the mean loss over all ranks.
    """
    losses = []
    for done, (images, labels) in enumerate(loader, 1):
        if done <= skipped:
            continue
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        after_batch(done)
    mean = torch.stack(losses).mean()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


@torch.no_grad()
def measure(network: nn.Module, test: TensorDataset) -> float:
    """The share of test images that are read correctly; every rank looks at its part of them."""
    images, labels = (part[dist.get_rank() :: dist.get_world_size()] for part in test.tensors)
    correct = (network(images).argmax(dim=1) == labels).sum()
    dist.all_reduce(correct)
    return correct.item() / len(test)


if __name__ == "__main__":
    main()
