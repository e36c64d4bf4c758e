"""Prints the rate at which this machine copies memory with every given core at work, in bytes a second and core.

Usage: copy_speed.py CORE...      One process a core copies 64 MiB arrays; the median of all their rounds counts.
"""
import multiprocessing
import os
import statistics
import sys
import time

import numpy

BYTES, ROUNDS = 64 << 20, 20


def copy(core, barrier, results):
    os.sched_setaffinity(0, {core})
    source, target = numpy.ones(BYTES, numpy.uint8), numpy.zeros(BYTES, numpy.uint8)
    barrier.wait()
    for _ in range(ROUNDS):
        start = time.perf_counter()
        numpy.copyto(target, source)
        results.put(BYTES / (time.perf_counter() - start))


def main():
    cores = [int(core) for core in sys.argv[1:]]
    barrier, results = multiprocessing.Barrier(len(cores)), multiprocessing.Queue()
    workers = [multiprocessing.Process(target=copy, args=(core, barrier, results)) for core in cores]
    for worker in workers:
        worker.start()
    rates = [results.get() for _ in range(ROUNDS * len(cores))]
    for worker in workers:
        worker.join()
    print(f"{statistics.median(rates):.0f}")


main()
