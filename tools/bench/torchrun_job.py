"""PyTorch's side of the start and recover benches: a small network on random images, two gloo ranks under torchrun.

Prints `step N attempt A` after each optimizer step of rank 0, and checkpoints every 10 steps as such scripts do.
Usage: torchrun --nproc-per-node 2 torchrun_job.py --steps N --checkpoint FILE
"""
import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, required=True)
    p.add_argument("--checkpoint", required=True)
    a = p.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    torch.manual_seed(1)
    images, labels = torch.rand(4096, 64), torch.randint(0, 10, (4096,))
    net = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    first = 0
    if os.path.exists(a.checkpoint):
        state = torch.load(a.checkpoint)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    for step in range(first, a.steps):
        rows = torch.arange(step * 64 + rank * 32, step * 64 + rank * 32 + 32) % 4096
        loss = loss_of(net(images[rows]), labels[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step + 1} attempt {attempt}", flush=True)
            if (step + 1) % 10 == 0:
                torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, a.checkpoint + ".tmp")
                os.replace(a.checkpoint + ".tmp", a.checkpoint)
    dist.destroy_process_group()


main()
