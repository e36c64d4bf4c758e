#!/usr/bin/env python3
"""Writes a small image data set in IDX format that a network can learn: noisy copies of one random pattern per class.

Usage: synthetic_idx.py FOLDER [--rows 4096] [--size 8] [--classes 10] [--seed 1]
Writes FOLDER/{images,labels}.idx. Needs nothing but Python.
"""
import argparse
import pathlib
import random
import struct


def write(folder, rows=4096, size=8, classes=10, seed=1):
    rng = random.Random(seed)
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    patterns = [[rng.randrange(256) for _ in range(size * size)] for _ in range(classes)]
    labels = bytes(rng.randrange(classes) for _ in range(rows))
    pixels = bytearray()
    for label in labels:
        noise = rng.randbytes(size * size)
        pixels += bytes((3 * p + n) >> 2 for p, n in zip(patterns[label], noise))
    (folder / "images.idx").write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, rows, size, size) + pixels)
    (folder / "labels.idx").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, rows) + labels)
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    for name, value in (("rows", 4096), ("size", 8), ("classes", 10), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = vars(parser.parse_args())
    write(**args)
