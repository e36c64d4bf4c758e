"""What the end-to-end tests share: a sandbox with its own home, data and jobs, and the real binaries run in it.

Every process that a test starts inherits TUTTI_E2E=<sandbox id>, so that "nothing is left running" is checked for the whole system
and not for the children that we happen to know. Nothing here sleeps: waits poll a condition until a deadline.
"""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TUTTI_BIN_DIR", ROOT / "build/release/bin"))
sys.path.insert(0, str(ROOT / "tools"))
import synthetic_idx  # noqa: E402

DEADLINE_S = 60


def wait_until(condition, what, deadline_s=DEADLINE_S):
    """The condition's first true value; fails the test when it stays false."""
    end = time.monotonic() + deadline_s
    poll = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline_s} s for: {what}")
        poll.wait(0.01)


def processes(marker):
    """{pid: argv} of every process in the system that carries `marker` in its environment."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if marker.encode() in (entry / "environ").read_bytes():
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if state != "Z" and argv[0]:
                    found[int(entry.name)] = argv
    return found


LAYERS = {
    "mlp": ["flatten", "dense: {units: 32}", "relu", "dense: {units: 10}"],
    # Dropout and batch norm: what makes equal bits hard.
    "cnn": ["conv2d: {channels: 8, kernel: 3, padding: 1}", "batchNorm: {}", "relu", "maxPool: {size: 2}", "flatten",
            "dense: {units: 32}", "relu", "dropout: {rate: 0.25}", "dense: {units: 10}"],
}


class Sandbox:
    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tutti-e2e-"))
        self.id = uuid.uuid4().hex
        self.marker = f"TUTTI_E2E={self.id}"
        for name in ("home", "runtime"):
            (self.folder / name).mkdir(mode=0o700)
        self.env = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(self.folder / "home"),
                    "XDG_RUNTIME_DIR": str(self.folder / "runtime"), "TUTTI_E2E": self.id, "LANG": "C.UTF-8"}
        self.data = synthetic_idx.write(self.folder / "data", rows=600)
        synthetic_idx.write(self.folder / "eval", rows=101)

    def close(self):
        for pid in processes(self.marker):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def processes(self, name=""):
        """Pids of the sandbox's processes whose program is `name` (all when empty), ascending."""
        return sorted(pid for pid, argv in processes(self.marker).items() if not name or os.path.basename(argv[0]) == name)

    def write_job(self, name="job", model="cnn", out=None, **settings):
        """A small job; `settings` are lines of spec sections, given as section_key=value."""
        spec = {"batch_global": 24, "numerics_shards": 4, "numerics_threads": 1, "optimizer_type": "adamw",
                "optimizer_learningRate": "2e-3", "train_epochs": 2, "train_seed": 7, "train_logEverySteps": 1,
                "resources_ranks": 2, "checkpoint_everySteps": 10, "checkpoint_directory": out or self.folder / "runs" / name}
        spec.update(settings)
        sections = {}
        for key, value in spec.items():
            section, _, field = key.partition("_")
            if value is not None:
                sections.setdefault(section, []).append(f"{field}: {value}")
        lines = ["apiVersion: tutti/v1", "kind: TrainingJob", f"metadata: {{name: {name}}}", "spec:", "  model:", "    layers:"]
        lines += [f"      - {layer}" for layer in LAYERS[model]]
        lines += ["    loss: softmaxCrossEntropy", "  data:"]
        for kind, folder in (("train", "data"), ("eval", "eval")):
            lines += [f"    {kind}: {{format: idx, images: {self.folder / folder}/images.idx, labels: {self.folder / folder}/labels.idx}}"]
        lines += ["    classes: 10"]
        for section, fields in sections.items():
            lines += [f"  {section}:"] + [f"    {field}" for field in fields]
        path = self.folder / f"{name}.yaml"
        path.write_text("\n".join(lines) + "\n")
        return path

    def start(self, *argv, **options):
        """A program of ours in the background."""
        # A shell that runs the tests in the background has SIGINT ignored, and children would inherit that.
        options = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
                   "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, **options}
        env = {**self.env, **options.pop("env", {})}
        return subprocess.Popen([str(a) for a in argv], env=env, cwd=self.folder, text=True, **options)

    def call(self, *argv, timeout=DEADLINE_S, **options):
        """(exit code, stdout, stderr) of a program that ends by itself."""
        process = self.start(*argv, **options)
        out, err = process.communicate(timeout=timeout)
        return process.returncode, out, err

    def run_json(self, *argv, expect=0, **options):
        """The object that `tutti run ... -o json` ends with."""
        code, out, err = self.call("tutti", "run", *argv, "-o", "json", **options)
        assert code == expect, f"exit code {code}, expected {expect}\n{out}\n{err}"
        return json.loads(out)


class E2ETest(unittest.TestCase):
    def setUp(self):
        self.box = Sandbox()
        self.addCleanup(self.box.close)

    def assert_nothing_left(self, deadline_s=20):
        """No process, socket or shared memory of the sandbox is alive."""
        wait_until(lambda: not self.box.processes(), "no process of the sandbox is left", deadline_s)
        sockets = [str(p) for p in self.box.folder.rglob("*") if p.is_socket()]
        self.assertEqual(sockets, [])


def main():
    unittest.main(verbosity=2)
