"""The coordinator-restart case of the recover bench: how long the steps of a running job take while its coordinator is killed.

Trains configs/jobs/fashion_mnist_cnn.yaml on two ranks under a coordinator and an agent, SIGKILLs the coordinator several times,
starts it again each time as soon as it is dead, and reads every step's start from the coordinator's own series at the end. A step
lasts from its start to the next one's, so whatever happens between steps counts. The limit is twice the median step.
Usage: restart.py BUILD_BIN [--restarts N] [--steps N]      with grpcio and the stubs of api_stubs.py on the import path
"""
import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import grpc
from tutti.v1 import api_pb2, api_pb2_grpc, cluster_pb2

JOB = pathlib.Path(__file__).resolve().parents[2] / "configs" / "jobs" / "fashion_mnist_cnn.yaml"
STEPS_BETWEEN = 60  # from one restart to the next
DEADLINE_S = 120


def wait_until(condition, what):
    end, poll = time.monotonic() + DEADLINE_S, threading.Event()
    while True:
        try:
            value = condition()
        except (grpc.RpcError, OSError):  # the coordinator is on its way
            value = None
        if value:
            return value
        if time.monotonic() > end:
            sys.exit(f"waited {DEADLINE_S} s for: {what}")
        poll.wait(0.02)


class Cluster:
    def __init__(self, binaries, folder):
        self.binaries, self.state, self.port = pathlib.Path(binaries), folder / "coordinator", 0
        self.start_coordinator()
        environment = {**os.environ, "TUTTI_TOKEN_FILE": str(self.state / "token")}
        self.agent = subprocess.Popen([self.binaries / "tutti-worker", "--coordinator", self.address, "--state-dir", folder / "agent",
                                       "--slots", "2"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: self.call(api_pb2_grpc.NodeServiceStub, "ListNodes", api_pb2.ListNodesRequest()).nodes, "the agent registers")

    def start_coordinator(self):
        (self.state / "address").unlink(missing_ok=True)
        self.coordinator = subprocess.Popen([self.binaries / "tutti-coordinator", "--state-dir", self.state, "--listen",
                                             f"127.0.0.1:{self.port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.address = wait_until(lambda: (self.state / "address").read_text().strip(), "the coordinator listens")
        self.port = self.address.rpartition(":")[2]

    def kill_coordinator(self):
        self.coordinator.send_signal(signal.SIGKILL)
        self.coordinator.wait()

    def call(self, service, method, request):
        """The answer of one call, or the list of answers of a stream."""
        token = (self.state / "token").read_text().strip()
        with grpc.insecure_channel(self.address) as channel:
            answer = getattr(service(channel), method)(request, timeout=30, metadata=[("authorization", "Bearer " + token)])
            return list(answer) if isinstance(answer, grpc.Call) else answer

    def status(self, job_id):
        return self.call(api_pb2_grpc.JobServiceStub, "GetJob", api_pb2.GetJobRequest(id=job_id)).job.status

    def steps(self, job_id):
        chunks = self.call(api_pb2_grpc.JobServiceStub, "ReadMetrics", api_pb2.ReadMetricsRequest(id=job_id))
        return [step for chunk in chunks for step in chunk.steps]

    def close(self):
        for process in (self.agent, self.coordinator):
            process.terminate()
            process.wait()


def train(cluster, folder, restarts, steps):
    """Step durations by step number, and the steps during which each restart took place."""
    settings = {"resources.ranks": 2, "numerics.threads": 1, "train.steps": steps, "train.evaluateAtEnd": "false",
                "checkpoint.everySteps": 20, "checkpoint.directory": folder / "run"}
    submitted = subprocess.run([cluster.binaries / "tutti", "submit", JOB, "-o", "json"] +
                               [word for key, value in settings.items() for word in ("--set", f"{key}={value}")],
                               env={**os.environ, "TUTTI_COORDINATOR": cluster.address, "TUTTI_TOKEN_FILE": cluster.state / "token"},
                               check=True, stdout=subprocess.PIPE, text=True)
    job_id = json.loads(submitted.stdout)["id"]
    status = lambda: cluster.status(job_id)
    disturbed = []
    for i in range(restarts):
        wait_until(lambda: status().completed_step >= 40 + i * STEPS_BETWEEN, "the job trains")
        before = status().completed_step
        cluster.kill_coordinator()
        cluster.start_coordinator()
        disturbed.append((before, wait_until(lambda: status().completed_step > before + 3 and status().completed_step, "it is adopted")))
    wait_until(lambda: status().state >= cluster_pb2.JOB_STATE_SUCCEEDED, "the job ends")
    if status().state != cluster_pb2.JOB_STATE_SUCCEEDED or status().attempts != 1:
        sys.exit(f"the job did not survive: {status()}")
    records = cluster.steps(job_id)
    if [record.step for record in records] != list(range(1, steps + 1)):
        sys.exit(f"the series has {len(records)} of {steps} steps")
    return {a.step: b.start_unix_ms - a.start_unix_ms for a, b in zip(records, records[1:])}, disturbed


def main():
    p = argparse.ArgumentParser()
    p.add_argument("binaries")
    p.add_argument("--restarts", type=int, default=5)
    p.add_argument("--steps", type=int)
    a = p.parse_args()
    with tempfile.TemporaryDirectory(prefix="tutti-bench-") as name:
        folder = pathlib.Path(name)
        cluster = Cluster(a.binaries, folder)
        try:
            durations, disturbed = train(cluster, folder, a.restarts, a.steps or 60 + (a.restarts + 1) * STEPS_BETWEEN)
        finally:
            cluster.close()
    durations.pop(1)  # first use of everything
    near = {s for first, last in disturbed for s in range(first, last + 1)}
    median = statistics.median(durations.values())
    longest = max(value for step, value in durations.items() if step in near)
    print("# restarts during steps " + ", ".join(f"{first}-{last}" for first, last in disturbed) +
          f"; median step {median:.0f} ms, longest beside restarts {longest:.0f} ms, "
          f"longest elsewhere {max(value for step, value in durations.items() if step not in near):.0f} ms")
    print(f"recover coordinator-restart tutti={longest:.0f}ms peer={2 * median:.0f}ms ratio={2 * median / longest:.2f}")


if __name__ == "__main__":
    main()
