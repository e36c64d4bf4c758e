"""PyTorch's side of the cnn and mlp benches: training throughput, loader included, as one JSON line per variant.

Same models, batch, data and optimizer as configs/jobs/fashion_mnist_{cnn,mlp}.yaml. Usage:
  torch_train.py --model cnn --variant eager|channels_last|compiled --steps N --threads N
"""
import argparse
import gzip
import json
import time

import numpy as np
import torch
from torch import nn

FOLDER = "/usr/share/datasets/fashion-mnist"


def load():
    with gzip.open(f"{FOLDER}/train-images-idx3-ubyte.gz") as f:
        images = np.frombuffer(f.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(f"{FOLDER}/train-labels-idx1-ubyte.gz") as f:
        labels = np.frombuffer(f.read(), np.uint8, offset=8)
    return images, labels


class Rows(torch.utils.data.Dataset):
    """In-memory rows that are fetched a batch at a time: the fastest standard loader for data of this size."""

    def __init__(self, images, labels, flat):
        self.images = torch.from_numpy(images.copy())
        if flat:
            self.images = self.images.reshape(len(labels), -1)
        self.labels = torch.from_numpy(labels.astype(np.int64))

    def __len__(self):
        return len(self.labels)

    def __getitems__(self, rows):
        rows = torch.as_tensor(rows)
        return (self.images[rows].float().mul_(1 / 255).sub_(0.2860).div_(0.3530), self.labels[rows])


def model_of(name):
    if name == "mlp":
        return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", required=True, choices=["cnn", "mlp"])
    p.add_argument("--variant", required=True, choices=["eager", "channels_last", "compiled"])
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--warmup", type=int, default=20)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--batch", type=int, default=128)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    images, labels = load()
    data = Rows(images, labels, a.model == "mlp")
    sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data), a.batch, drop_last=True)
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler, collate_fn=lambda x: x)
    net = model_of(a.model)
    if a.variant != "eager" and a.model == "cnn":
        net = net.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()

    def forward(x, y):
        return loss_of(net(x), y)

    step = torch.compile(forward) if a.variant == "compiled" else forward
    done, start, losses, ends = 0, 0.0, [], []
    while done < a.warmup + a.steps:
        for x, y in loader:
            if done == a.warmup:
                start = time.perf_counter()
            if a.variant != "eager" and a.model == "cnn":
                x = x.to(memory_format=torch.channels_last)
            loss = step(x, y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            ends.append(time.perf_counter())
            done += 1
            if done == a.warmup + a.steps:
                break
    seconds = time.perf_counter() - start
    step_ms = sorted(1000 * (end - begin) for begin, end in zip(ends[-a.steps - 1:-1], ends[-a.steps:]))
    print(json.dumps({"peer": "torch " + torch.__version__, "model": a.model, "variant": a.variant,
                      "samples_per_second": a.steps * a.batch / seconds, "step_ms": 1000 * seconds / a.steps,
                      "median_step_ms": step_ms[len(step_ms) // 2],
                      "loss": sum(losses[-20:]) / 20}))


main()
