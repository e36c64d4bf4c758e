"""The same bits: the final weights depend on the job file and the seed alone."""
import contextlib
import json
import os
import pathlib
import signal
import time

from harness import DEADLINE_S, E2ETest, main, wait_until

MANIFEST = "manifest.json"


def step_of(folder):
    return int(folder.name.split("-")[1].split(".")[0])


class LiveRun:
    """A `tutti run` of two ranks that are stopped, looked at, and killed where the look proves what they were doing.

    A stopped process changes nothing: what is seen after the stop still holds when SIGKILL comes. Where it is not what the test
    wants, the ranks go on and the next moment is tried.
    """

    def __init__(self, box, name, process):
        self.box, self.folder, self.process = box, box.folder / "runs" / name, process
        self.dead = set()

    def ranks(self):
        """Pids of the ranks of a new generation, by rank."""
        def both():
            pids = [pid for pid in self.box.processes("tutti-rank") if pid not in self.dead]
            return len(pids) == 2 and sorted(pids, key=rank_of)
        pids = wait_until(both, "two ranks run")
        self.dead.update(pids)  # when the next ones are asked for
        return pids

    def folders(self, generation):
        """Step folders of a generation, newest last."""
        return sorted(self.folder.glob(f"step-*.g{generation}.*"), key=step_of)

    def base_step(self, generation):
        """The step that a generation resumed from, as it recorded it."""
        (mark,) = self.folder.glob(f"base.g{generation}.*")
        return int(json.loads(mark.read_text())["baseStep"])

    def watch(self, condition, what):
        """Like wait_until, without a pause: what is waited for lasts milliseconds."""
        end = time.monotonic() + DEADLINE_S
        while not (value := condition()):
            if time.monotonic() > end or self.process.poll() is not None:
                raise AssertionError(f"never seen: {what}")
        return value

    def completed_after(self, step):
        """A completed step beyond `step` that stopped ranks have reported to the run's coordinator; None: there is none."""
        socket = next((self.box.folder / "runtime").rglob("coordinator.sock"))
        for _ in range(5):  # a report may be under way
            code, out, err = self.box.call("tutti", "get", "jobs", "-o", "json", env={"TUTTI_COORDINATOR": f"unix:{socket}"})
            assert code == 0, err
            completed = int(json.loads(out)[0]["status"].get("completedStep", 0))
            if completed > step:
                return completed
        return None

    def kill_in_a_step(self, generation):
        """SIGKILL of rank 1 when steps beyond the last checkpoint are done and no checkpoint is being written:
        (step of that checkpoint, a step that was completed)."""
        pids, seen = self.ranks(), 0
        while True:
            self.watch(lambda: any(step_of(f) > seen and (f / MANIFEST).exists() for f in self.folders(generation)), "a commit")
            stop(pids)
            newest = self.folders(generation)[-1]
            seen = step_of(newest)
            if (newest / MANIFEST).exists() and (completed := self.completed_after(seen)):
                kill(pids[1])
                resume(pids[:1])
                return seen, completed
            resume(pids)

    def kill_in_a_checkpoint(self, generation):
        """SIGKILL of rank 0, which commits, when a step folder holds a part and no manifest: (folder, its files)."""
        pids, seen = self.ranks(), 0
        while True:
            torn = self.watch(lambda: next((f for f in self.folders(generation) if step_of(f) > seen and is_torn(f)), None),
                              "a checkpoint being written")
            stop(pids[:1])
            seen = step_of(torn)
            if is_torn(torn):
                left = os.listdir(torn)
                kill(pids[0])
                return torn, left
            resume(pids[:1])


def rank_of(pid):
    """-1: the process is gone, or its environment cannot be read yet."""
    with contextlib.suppress(OSError):
        for entry in pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0"):
            if entry.startswith("RANK="):
                return int(entry.removeprefix("RANK="))
    return -1


def is_torn(folder):
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return False
    return MANIFEST not in names and any(name.startswith("rank-") for name in names)


def stop(pids):
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: all(thread_states(pid) == {"T"} for pid in pids), "every thread has stopped")


def resume(pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # the shim ends a victim without asking it
            os.kill(pid, signal.SIGCONT)


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: thread_states(pid) <= {"X", "Z"}, "the victim is dead")


def thread_states(pid):
    """Letters of /proc's stat, of all threads; empty when the process is gone."""
    states = set()
    for stat in pathlib.Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # the thread ended meanwhile
            states.add(stat.read_text().rpartition(")")[2].split()[0])
    return states


class SameBits(E2ETest):
    def test_ranks_1_to_4_give_equal_weights_and_exact_epochs(self):  # NUM-10, CKP-15, SHD-01
        results = {}
        for ranks in (1, 2, 3, 4):
            job = self.box.write_job(f"ranks-{ranks}")
            results[ranks] = self.box.run_json(job, "--set", f"resources.ranks={ranks}")
        first = results[1]
        self.assertEqual(first["state"], "SUCCEEDED")
        self.assertEqual(first["steps"], 50)  # 2 epochs of 600 samples, 24 a step
        for ranks, result in results.items():
            self.assertEqual(result["ranks"], ranks)
            self.assertEqual(result["weightsSha256"], first["weightsSha256"], f"{ranks} ranks")
            self.assertEqual(result["ledger"], {"epochs": 2, "exact": True})
            self.assertEqual(result["samples"], 1200)
            self.assertEqual(result["metrics"]["eval.samples"], 101)
            self.assertEqual(result["metrics"]["eval.accuracy"], first["metrics"]["eval.accuracy"])
        other = self.box.run_json(self.box.write_job("other-seed", train_seed=8))
        self.assertNotEqual(other["weightsSha256"], first["weightsSha256"])

    def test_killed_twice_gives_the_weights_of_an_undisturbed_run(self):  # CKP-01, SHD-03
        spec = {"train_epochs": 120, "checkpoint_everySteps": 150}  # 3000 steps: 20 checkpoints, each a chance
        quiet = self.box.run_json(self.box.write_job("quiet", **spec))
        process = self.box.start("tutti", "run", self.box.write_job("killed", restart_backoffMs=10, **spec), "-o", "json")
        run = LiveRun(self.box, "killed", process)
        durable, completed = run.kill_in_a_step(generation=1)
        torn, left = run.kill_in_a_checkpoint(generation=2)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        result = json.loads(out)
        self.assertEqual([failure["signal"] for failure in result["failures"]], [9, 9])
        self.assertEqual([failure["rank"] for failure in result["failures"]], [1, 0])
        # In a step: steps beyond the checkpoint were lost and made again from it.
        self.assertLess(durable, completed)
        self.assertLess(completed, durable + 150)
        self.assertGreaterEqual(result["failures"][0]["completedStep"], completed)
        self.assertEqual(run.base_step(generation=2), durable)
        # In a checkpoint: nobody committed the part that was left, and the next generation swept it away.
        self.assertRegex(" ".join(left), r"rank-\d\.(safetensors|done)")
        self.assertNotIn(MANIFEST, left)
        self.assertFalse(torn.exists())
        self.assertLess(run.base_step(generation=3), step_of(torn))
        self.assertEqual((result["attempts"], result["generation"]), (3, 3))
        self.assertEqual(result["weightsSha256"], quiet["weightsSha256"])
        self.assertEqual(result["ledger"], {"epochs": 120, "exact": True})
        code, out, err = self.box.call("tutti", "verify", run.folder, "-o", "json")
        self.assertEqual(code, 0, err)
        verified = json.loads(out)
        self.assertEqual((verified["exact"], verified["epochs"], verified["steps"]), (True, 120, 3000))
        self.assertEqual(verified["weightsSha256"], quiet["weightsSha256"])
        self.assert_nothing_left()

    def test_resumed_at_another_width_gives_the_weights_of_one_run(self):  # SHD-07, SHD-08
        whole = self.box.run_json(self.box.write_job("whole", train_epochs=None, train_steps=40))
        out = self.box.folder / "runs" / "parts"
        self.box.run_json(self.box.write_job("parts", out=out, train_epochs=None, train_steps=40), "--set", "train.steps=17",
                          "--set", "resources.ranks=3")
        job = self.box.write_job("parts", out=out, train_epochs=None, train_steps=40)
        rest = self.box.run_json(job, "--resume", "--set", "resources.ranks=1")
        self.assertEqual(rest["weightsSha256"], whole["weightsSha256"])
        self.assertEqual(rest["steps"], 40)


if __name__ == "__main__":
    main()
