"""The start and recover benches: how long until a small job's first step, and from the SIGKILL of a rank to the next new step.

Tutti (two shm ranks) and torchrun (two gloo ranks) alternate in one run; times are what a person at the terminal sees: from the
command to the line that announces the step.
Usage: lifecycle.py start|recover BUILD_BIN TORCH_BIN [--rounds N] [--tutti-rounds N]
"""
import argparse
import contextlib
import os
import pathlib
import re
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import synthetic_idx  # noqa: E402

JOB = """apiVersion: tutti/v1
kind: TrainingJob
metadata: {{name: lifecycle}}
spec:
  model:
    layers:
      - flatten
      - dense: {{units: 64}}
      - relu
      - dense: {{units: 10}}
    loss: softmaxCrossEntropy
  data:
    train: {{format: idx, images: {data}/images.idx, labels: {data}/labels.idx}}
    classes: 10
  batch: {{global: 64}}
  numerics: {{shards: 2, threads: 1}}
  optimizer: {{type: sgd, learningRate: 0.05, momentum: 0.9}}
  train: {{steps: 1000000, logEverySteps: 1}}
  resources: {{ranks: 2}}
  checkpoint: {{directory: {out}, everySteps: 10}}
"""


LIMIT_S = 60  # for one awaited line

# PyTorch 2.15 lets restarted workers share the agent's store with the dead ones, whose gloo addresses they then find there: every
# second job hangs or fails. With stores of their own its recovery works.
TORCH_ENVIRONMENT = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class Run:
    """A command whose output lines are matched as they arrive."""

    def __init__(self, argv, cwd, abrupt=False, env=None):
        self.abrupt = abrupt
        self.start = time.monotonic()
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=cwd, bufsize=0,
                                        start_new_session=True, env=env)
        self.ended, self.partial, self.lines, self.seen = False, b"", [], []

    def next_line(self, end):
        """The next line of output; None: the program ended, or wrote none by `end`."""
        while not self.lines and not self.ended:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                return None
            chunk = os.read(self.process.stdout.fileno(), 65536)
            *whole, self.partial = (self.partial + chunk).split(b"\n")
            self.ended = not chunk
            self.lines = [line.decode(errors="replace") for line in whole]
        return self.lines.pop(0) if self.lines else None

    def wait_for(self, pattern):
        """Monotonic time at which a line matching `pattern` was read."""
        end = time.monotonic() + LIMIT_S
        while (line := self.next_line(end)) is not None:
            self.seen = (self.seen + [line])[-40:]
            if re.search(pattern, line):
                return time.monotonic()
        raise SystemExit("ended, or stood still, before a line matched %r:\n%s" % (pattern, "\n".join(self.seen)))

    def stop(self):
        """How a side leaves is not measured: torchrun takes half a minute, so it is killed with all its workers."""
        self.process.stdout.close()
        if self.abrupt:
            for pid in [self.process.pid, *descendants(self.process.pid, "")]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        else:
            self.process.terminate()
        try:
            self.process.wait(timeout=LIMIT_S)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


def descendants(root, name):
    """Process ids of `name` below process `root`, oldest first."""
    parents, names = {}, {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
            names[int(entry.name)] = " ".join(c.decode(errors="replace") for c in command)
    found = []
    for pid in sorted(parents):
        at = pid
        while at in parents and at != root:
            at = parents[at]
        if at == root and pid != root and name in names[pid]:
            found.append(pid)
    return found


def tutti(binary, folder):
    job = folder / "job.yaml"
    job.write_text(JOB.format(data=folder / "data", out=folder / "run"))
    return Run([f"{binary}/tutti", "run", str(job)], folder)


def torchrun(binary, folder):
    return Run([f"{binary}/torchrun", "--nproc-per-node", "2", "--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                "localhost:0", "--max-restarts", "3", str(HERE / "torchrun_job.py"), "--steps", "1000000", "--checkpoint",
                str(folder / "torch.pt")], folder, abrupt=True, env=TORCH_ENVIRONMENT)


def measure(kind, side, binary, data):
    with tempfile.TemporaryDirectory(prefix="tutti-bench-") as name:
        folder = pathlib.Path(name)
        (folder / "data").symlink_to(data)
        run = (tutti if side == "tutti" else torchrun)(binary, folder)
        try:
            first_step = run.wait_for(r"^step +\d+" if side == "torch" else r"^step +1\b|first step after")
            if kind == "start":
                return first_step - run.start
            run.wait_for(r"^step +40\b" if side == "torch" else r"^step ([4-9]\d|[\d,]{3,})/")
            victims = descendants(run.process.pid, "torchrun_job.py" if side == "torch" else "tutti-rank")
            os.kill(victims[-1], signal.SIGKILL)
            killed = time.monotonic()
            if side == "torch":
                return run.wait_for(r"attempt 1") - killed
            run.wait_for(r"^RECOVERING")
            return run.wait_for(r"^step [\d,]+/") - killed
        finally:
            run.stop()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("kind", choices=["start", "recover"])
    p.add_argument("tutti_bin")
    p.add_argument("torch_bin")
    p.add_argument("--rounds", type=int, default=5, help="of torchrun")
    p.add_argument("--tutti-rounds", type=int, default=20)
    a = p.parse_args()
    times = {"tutti": [], "torch": []}
    with tempfile.TemporaryDirectory(prefix="tutti-bench-data-") as data:
        synthetic_idx.write(data)
        for i in range(a.tutti_rounds):
            times["tutti"].append(measure(a.kind, "tutti", a.tutti_bin, data))
            if i * a.rounds // a.tutti_rounds != (i - 1) * a.rounds // a.tutti_rounds:  # `rounds` of them, evenly spread
                times["torch"].append(measure(a.kind, "torch", a.torch_bin, data))
            print(f"round {i + 1}: " + ", ".join(f"{k} {v[-1] * 1000:.0f} ms" for k, v in times.items() if v), flush=True)
    peer = statistics.median(times["torch"])
    for case, value in (("median", statistics.median(times["tutti"])), ("worst", max(times["tutti"]))):
        print(f"{a.kind} {case} tutti={value * 1000:.0f}ms peer={peer * 1000:.0f}ms ratio={peer / value:.2f}")


if __name__ == "__main__":
    main()
