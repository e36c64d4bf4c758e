"""A coordinator and agents on loopback TCP, as on a cluster: tokens, submission, several nodes, logs, cancel, restarts."""
import hashlib
import json
import os
import pathlib
import signal
import stat
import struct
import subprocess

from harness import ROOT, E2ETest, main, wait_until
import api_stubs


def weights_sha256(folder, manifest):
    """The identity of trained weights, from the files of a step folder and the definition in engine/checkpoint/writer.h."""
    elements = {}
    for path in folder.glob("*.safetensors"):
        raw = path.read_bytes()
        start = 8 + int.from_bytes(raw[:8], "little")
        for name, tensor in json.loads(raw[8:start]).items():
            if name != "__metadata__":
                first, last = tensor["data_offsets"]
                elements[name] = raw[start + first:start + last]
    digest = hashlib.sha256()
    for tensor in sorted(manifest["tensors"], key=lambda tensor: tensor["name"].encode()):
        if tensor["role"] in ("TENSOR_ROLE_PARAMETER", "TENSOR_ROLE_STATISTIC"):
            shape = [int(dim) for dim in tensor["shape"]]
            digest.update(tensor["name"].encode() + b"\0" + struct.pack(f"<{1 + len(shape)}q", len(shape), *shape))
            digest.update(hashlib.sha256(elements[tensor["name"]]).digest())
    return digest.hexdigest()


class Cluster(E2ETest):
    def start_coordinator(self, port=0):
        state = self.box.folder / "coordinator"
        (state / "address").unlink(missing_ok=True)
        process = self.box.start("tutti-coordinator", "--state-dir", state, "--listen", f"127.0.0.1:{port}",
                                 stdout=subprocess.DEVNULL, stderr=self.log("coordinator"))
        wait_until(lambda: (state / "address").exists(), "the coordinator listens")
        self.box.env["TUTTI_COORDINATOR"] = (state / "address").read_text().strip()
        self.box.env["TUTTI_TOKEN_FILE"] = str(state / "token")
        return process

    def start_agent(self, name, *options, slots=1, umask=0o022):
        """Agents of one slot stand for machines: each has a core of this machine to itself (slots are locked host-wide)."""
        cores = {"a": {0}, "b": {1}}[name] if slots == 1 else {0, 1}

        def prepare():
            os.sched_setaffinity(0, cores)
            os.umask(umask)
        return self.box.start("tutti-worker", "--coordinator", self.box.env["TUTTI_COORDINATOR"], "--state-dir",
                              self.box.folder / f"agent-{name}", "--name", name, "--slots", slots, *options, stdout=subprocess.DEVNULL,
                              preexec_fn=prepare, stderr=self.log(f"agent-{name}"))

    def log(self, name):
        file = open(self.box.folder / f"{name}.log", "a")
        self.addCleanup(file.close)
        return file

    def nodes(self):
        code, out, err = self.box.call("tutti", "get", "nodes", "-o", "json")
        self.assertEqual(code, 0, err)
        return json.loads(out)

    def wait_for_nodes(self, count):
        wait_until(lambda: sum("READY" in json.dumps(n) for n in self.nodes()) == count, f"{count} nodes are ready")

    def submit(self, job, *options):
        code, out, err = self.box.call("tutti", "submit", job, *options, "-o", "json")
        self.assertEqual(code, 0, err)
        return json.loads(out)["id"]

    def job(self, job_id):
        code, out, err = self.box.call("tutti", "get", "job", job_id, "-o", "json")
        self.assertEqual(code, 0, err)
        return json.loads(out)

    def state(self, job_id):
        return self.job(job_id)["status"]["state"].removeprefix("JOB_STATE_")

    def wait_for_state(self, job_id, *states):
        return wait_until(lambda: self.state(job_id) in states and self.state(job_id), f"job {job_id} is {states}", 90)

    def test_two_nodes_train_one_job_over_gloo_with_the_bits_of_one_node(self):  # ENV-02, RDZ-10
        alone = self.box.run_json(self.box.write_job("alone"))
        self.start_coordinator()
        self.start_agent("a"), self.start_agent("b")
        self.wait_for_nodes(2)
        job_id = self.submit(self.box.write_job("two-nodes"))
        self.assertEqual(self.wait_for_state(job_id, "SUCCEEDED", "FAILED"), "SUCCEEDED", json.dumps(self.job(job_id)["status"])[:3000])
        status = self.job(job_id)["status"]
        self.assertEqual(status["weightsSha256"], alone["weightsSha256"])
        self.assertEqual(sorted(share["node"] for share in status["assignment"]["nodes"]), ["a", "b"])
        code, out, err = self.box.call("tutti", "verify", job_id)
        self.assertEqual(code, 0, err)
        self.assertIn("exact", out)

    def test_only_global_rank_0_writes_the_shared_files(self):  # CKP-04
        umasks = {"a": 0o022, "b": 0o077}  # ranks inherit it: a file's mode is the trace of the node that created it
        self.start_coordinator()
        for name, umask in umasks.items():
            self.start_agent(name, umask=umask)
        self.wait_for_nodes(2)
        job_id = self.submit(self.box.write_job("shared", train_epochs=None, train_steps=100, checkpoint_everySteps=5,
                                                checkpoint_keep=20))
        self.assertEqual(self.wait_for_state(job_id, "SUCCEEDED", "FAILED"), "SUCCEEDED", json.dumps(self.job(job_id)["status"])[:3000])
        nodes = {int(share.get("firstRank", 0)): share["node"] for share in self.job(job_id)["status"]["assignment"]["nodes"]}
        self.assertEqual(sorted(nodes.values()), ["a", "b"])
        mode = {rank: 0o644 & ~umasks[node] for rank, node in nodes.items()}
        self.assertNotEqual(mode[0], mode[1])
        run = self.box.folder / "runs/shared"
        folders = [folder for folder in run.glob("step-*.g1.*")]
        self.assertEqual(len(folders), 20)
        shared = [file for pattern in ("claim.*", "base.*") for file in run.glob(pattern)]
        self.assertEqual(len(shared), 2)
        for folder in folders:
            self.assertEqual(sorted(os.listdir(folder)), ["ledger.bin", "manifest.json", "rank-0.done", "rank-0.safetensors",
                                                          "rank-1.done", "rank-1.safetensors"])
            shared += [folder / "manifest.json", folder / "ledger.bin"]
            for rank in (0, 1):
                for own in folder.glob(f"rank-{rank}.*"):
                    self.assertEqual(stat.S_IMODE(own.stat().st_mode), mode[rank], own)
            manifest = json.loads((folder / "manifest.json").read_text())
            self.assertEqual({file["name"]: int(file["bytes"]) for file in manifest["files"]},
                             {name: (folder / name).stat().st_size for name in ("rank-0.safetensors", "rank-1.safetensors", "ledger.bin")})
            self.assertEqual(weights_sha256(folder, manifest), manifest["weightsSha256"])
            code, out, err = self.box.call("tutti", "verify", folder, "-o", "json")  # every file's digest, too
            self.assertEqual(code, 0, err)
            self.assertEqual(json.loads(out)["weightsSha256"], manifest["weightsSha256"])
        for file in shared:
            self.assertEqual(stat.S_IMODE(file.stat().st_mode), mode[0], file)

    def test_late_rank_is_waited_for_and_one_that_never_comes_is_named(self):  # RDZ-03
        gate, program = self.box.folder / "gate", self.box.folder / "late-rank"
        os.mkfifo(gate)
        program.write_text(f'#!/bin/sh\nread line < "{gate}"\nexec tutti-rank\n')
        program.chmod(0o700)
        self.start_coordinator()
        self.start_agent("a"), self.start_agent("b", "--rank-program", program)
        self.wait_for_nodes(2)
        late = self.submit(self.box.write_job("late"))
        self.wait_for_state(late, "STARTING", "RUNNING")
        nodes = {int(share.get("firstRank", 0)): share["node"] for share in self.job(late)["status"]["assignment"]["nodes"]}
        (there,), (absent,) = ([rank for rank, node in nodes.items() if node == name] for name in "ab")
        wait_until(lambda: "rank" in self.box.call("tutti", "logs", late, "--rank", there)[1], "the rank on a runs")
        self.assertEqual(self.state(late), "STARTING")
        gate.write_text("come\n")
        self.assertEqual(self.wait_for_state(late, "SUCCEEDED", "FAILED"), "SUCCEEDED", json.dumps(self.job(late)["status"])[:3000])
        self.assertEqual(int(self.job(late)["status"]["attempts"]), 1)

        never = self.submit(self.box.write_job("never", restart_startTimeoutMs=1000, restart_maxUserFailures=0,
                                               restart_maxNodeFailures=0, restart_graceMs=100))
        self.assertEqual(self.wait_for_state(never, "SUCCEEDED", "FAILED"), "FAILED")
        (failure,) = self.job(never)["status"]["failures"]
        self.assertIn(f"expected 2 ranks, arrived 1, missing rank {absent} on b", failure["cause"])
        self.assertIn("1000 ms (restart.startTimeoutMs)", failure["cause"])
        self.assertEqual([int(rank) for rank in failure["victims"]], [there])

    def test_token_guards_the_port(self):  # SEC-01
        self.start_coordinator()
        token = pathlib.Path(self.box.env["TUTTI_TOKEN_FILE"])
        self.assertEqual(stat.S_IMODE(token.stat().st_mode), 0o600)
        job = self.box.write_job()
        del self.box.env["TUTTI_TOKEN_FILE"]
        code, _, err = self.box.call("tutti", "submit", job)
        self.assertEqual(code, 6, err)
        self.assertIn("token", err)
        code, _, err = self.box.call("tutti-coordinator", "--state-dir", self.box.folder / "open", "--listen", "0.0.0.0:0")
        self.assertNotEqual(code, 0)
        self.assertIn("mutually authenticated", err)

    def test_waiting_and_impossible_jobs_say_why(self):  # SCH-02
        self.start_coordinator()
        self.start_agent("a", slots=2)
        self.wait_for_nodes(1)
        long = self.submit(self.box.write_job("long", train_epochs=None, train_steps=1000000, resources_ranks=1))
        self.wait_for_state(long, "RUNNING")
        waiting = self.submit(self.box.write_job("waiting"))
        impossible = self.submit(self.box.write_job("impossible", numerics_shards=5, batch_global=25, resources_ranks=5))
        for job_id, words in ((waiting, "needs 2, free 1"), (impossible, "can never run: needs 5, total 2")):
            wait_until(lambda: words in json.dumps(self.job(job_id)), words)
            _, out, _ = self.box.call("tutti", "describe", "job", job_id)
            self.assertIn(words, out)
        code, out, err = self.box.call("tutti", "cancel", long, "-o", "json")  # API-07
        self.assertEqual(code, 0, err)
        self.assertRegex(out, "CANCELLING|CANCELLED")
        self.wait_for_state(long, "CANCELLED")
        code, out, _ = self.box.call("tutti", "cancel", long)
        self.assertEqual(code, 0)
        self.assertIn("CANCELLED", out)
        self.assertEqual(self.wait_for_state(waiting, "SUCCEEDED", "FAILED"), "SUCCEEDED")

    def test_node_that_dies_and_returns_re_forms_the_job(self):  # RDZ-05
        self.start_coordinator()
        self.start_agent("a")
        lost = self.start_agent("b")
        self.wait_for_nodes(2)
        job_id = self.submit(self.box.write_job("re-form", train_epochs=None, train_steps=3000, restart_backoffMs=10))
        wait_until(lambda: int(self.job(job_id)["status"].get("durableStep", 0)) >= 10, "a durable step")
        agent_b = "agent-b"
        lost.kill()
        lost.wait()
        for name in ("tutti-shim", "tutti-rank"):  # the whole node is gone
            for pid in self.box.processes(name):
                environ = pathlib.Path(f"/proc/{pid}/cwd")
                if agent_b in (os.readlink(environ) if environ.exists() else "") or agent_b in " ".join(
                        pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")):
                    os.kill(pid, signal.SIGKILL)
        self.start_agent("b")
        self.assertEqual(self.wait_for_state(job_id, "SUCCEEDED", "FAILED"), "SUCCEEDED", json.dumps(self.job(job_id)["status"])[:3000])
        self.assertEqual(int(self.job(job_id)["status"]["completedStep"]), 3000)

    def test_coordinator_that_returns_keeps_jobs_and_nodes(self):  # FLT-08, FLT-09, LOG-02
        coordinator = self.start_coordinator()
        port = self.box.env["TUTTI_COORDINATOR"].rpartition(":")[2]
        self.start_agent("a", slots=2)
        self.wait_for_nodes(1)
        done = self.submit(self.box.write_job("done", train_epochs=1))
        self.wait_for_state(done, "SUCCEEDED")
        job_id = self.submit(self.box.write_job("survives", train_epochs=None, train_steps=10000))
        wait_until(lambda: int(self.job(job_id)["status"].get("completedStep", 0)) >= 10, "some steps")
        ranks = self.box.processes("tutti-rank")
        coordinator.kill()
        coordinator.wait()
        self.start_coordinator(port)
        self.wait_for_nodes(1)
        self.assertEqual(self.box.processes("tutti-rank"), ranks)
        self.assertEqual(self.wait_for_state(job_id, "SUCCEEDED", "FAILED"), "SUCCEEDED")
        self.assertEqual(int(self.job(job_id)["status"]["attempts"]), 1)
        self.assertEqual(self.state(done), "SUCCEEDED")
        self.assertEqual(len(self.nodes()), 1)

    def test_python_client_submits_and_follows(self):
        self.start_coordinator()
        self.start_agent("a", slots=2)
        self.wait_for_nodes(1)
        stubs = self.box.folder / "stubs"
        api_stubs.generate(stubs)
        code, out, err = self.box.call("tutti", "submit", self.box.write_job("by-client"), "--dry-run", "-o", "json")
        self.assertEqual(code, 0, err)
        (self.box.folder / "job.json").write_text(out)
        code, out, err = self.box.call(api_stubs.PYTHON, ROOT / "examples/submit_and_follow.py", "job.json",
                                       env={"PYTHONPATH": str(stubs)})
        self.assertEqual(code, 0, f"{out}\n{err}")
        self.assertRegex(out, r"step \d+ loss \d+\.\d{4}")
        self.assertIn("JOB_STATE_SUCCEEDED", out.splitlines()[-1])

    def test_logs_by_rank_and_attempt(self):  # LOG-09, API-04
        self.start_coordinator()
        self.start_agent("a", slots=2)
        self.wait_for_nodes(1)
        job_id = self.submit(self.box.write_job("logs", train_epochs=None, train_steps=10000, restart_backoffMs=10))
        wait_until(lambda: int(self.job(job_id)["status"].get("durableStep", 0)) >= 10, "a durable step")
        follower = self.box.start("tutti", "logs", "-f", job_id, "--rank", "0")
        os.kill(self.box.processes("tutti-rank")[1], signal.SIGKILL)
        self.assertEqual(self.wait_for_state(job_id, "SUCCEEDED", "FAILED"), "SUCCEEDED")
        out, err = follower.communicate(timeout=30)
        self.assertEqual(follower.returncode, 0, err)
        self.assertTrue(out.strip())
        logs = {}
        for attempt in (1, 2):
            code, logs[attempt], err = self.box.call("tutti", "logs", job_id, "--rank", "0", "--attempt", attempt)
            self.assertEqual(code, 0, err)
            self.assertTrue(logs[attempt].strip())
        self.assertNotEqual(logs[1], logs[2])

    def test_absent_coordinator_is_said_within_seconds(self):  # API-04
        self.box.env["TUTTI_COORDINATOR"] = "127.0.0.1:1"
        code, _, err = self.box.call("tutti", "get", "jobs", timeout=20)
        self.assertEqual(code, 5)
        self.assertIn("127.0.0.1:1", err)
        coordinator = self.start_coordinator()
        coordinator.send_signal(signal.SIGSTOP)
        code, _, err = self.box.call("tutti", "get", "jobs", timeout=20)
        self.assertEqual(code, 5)
        coordinator.send_signal(signal.SIGCONT)
        code, _, err = self.box.call("tutti", "get", "jobs")
        self.assertEqual(code, 0, err)

    def test_the_same_uid_creates_one_job(self):
        self.start_coordinator()
        job = self.box.write_job("once")
        ids = {self.submit(job, "--uid", "fixed-uid-1") for _ in range(3)}
        self.assertEqual(len(ids), 1)
        code, _, err = self.box.call("tutti", "submit", job, "--uid", "fixed-uid-1", "--set", "train.seed=99")
        self.assertNotEqual(code, 0)
        self.assertIn("fixed-uid-1", err)


if __name__ == "__main__":
    main()
