"""Any process may be killed at any instant: what goes on, what ends, and that nothing is left."""
import fcntl
import json
import os
import pathlib
import pty
import re
import signal
import termios

from harness import E2ETest, main, wait_until


STEPS = 5000  # some seconds: a fault must find the job still running


class Faults(E2ETest):
    def start_run(self, name="job", **settings):
        """A run that is some steps in, as a background process."""
        settings = {"train_epochs": None, "train_steps": STEPS, "checkpoint_everySteps": 20, "restart_backoffMs": 10, **settings}
        process = self.box.start("tutti", "run", self.box.write_job(name, **settings), "-o", "json")
        self.wait_for_step(name, 10)
        return process

    def wait_for_step(self, name, step):
        wait_until(lambda: any(int(p.name.split("-")[1].split(".")[0]) >= step for p in
                               (self.box.folder / "runs" / name).glob("step-*.g*")), f"checkpoint of step {step} of {name}")

    def kill(self, program, index=0, sig=signal.SIGKILL):
        pid = self.box.processes(program)[index]
        os.kill(pid, sig)
        return pid

    @staticmethod
    def is_pending(pid, sig):
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        return int(re.search(r"^ShdPnd:\s*(\w+)", status, re.M).group(1), 16) >> (sig - 1) & 1

    def finish(self, process):
        out, err = process.communicate(timeout=90)
        self.assertEqual(process.returncode, 0, f"{out}\n{err}")
        self.assert_nothing_left()
        return json.loads(out)

    def test_sigkill_of_a_rank_goes_on_with_generation_2(self):  # FLT-01, RDZ-05
        process = self.start_run()
        self.kill("tutti-rank", 1)
        result = self.finish(process)
        self.assertEqual((result["state"], result["attempts"], result["generation"], result["steps"]), ("SUCCEEDED", 2, 2, STEPS))
        self.assertEqual(len(result["failures"]), 1)
        failure = json.dumps(result["failures"][0])
        self.assertIn("signal 9", failure)  # FLT-07: a kill is not called out-of-memory
        self.assertIn("possibly memory", failure)

    def test_sigkill_of_the_coordinator_costs_no_attempt(self):  # FLT-08, FLT-09
        process = self.start_run()
        ranks = self.box.processes("tutti-rank")
        old = self.kill("tutti-coordinator")
        wait_until(lambda: [p for p in self.box.processes("tutti-coordinator") if p != old], "a new coordinator")
        self.assertEqual(self.box.processes("tutti-rank"), ranks)
        result = self.finish(process)
        self.assertEqual((result["state"], result["attempts"], result["steps"]), ("SUCCEEDED", 1, STEPS))

    def test_sigkill_of_the_agent_costs_no_attempt(self):
        process = self.start_run()
        ranks = self.box.processes("tutti-rank")
        old = self.kill("tutti-worker")
        wait_until(lambda: [p for p in self.box.processes("tutti-worker") if p != old], "a new agent")
        self.assertEqual(self.box.processes("tutti-rank"), ranks)
        result = self.finish(process)
        self.assertEqual((result["state"], result["attempts"], result["steps"]), ("SUCCEEDED", 1, STEPS))

    def test_sigkill_of_the_command_line_leaves_nothing(self):  # FLT-03
        process = self.start_run(train_steps=1000000)
        process.kill()
        process.communicate()
        self.assert_nothing_left()

    def test_closed_terminal_leaves_nothing(self):
        main_end, terminal = pty.openpty()
        job = self.box.write_job("tty", train_epochs=None, train_steps=1000000)
        process = self.box.start("tutti", "run", job, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
                                 preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(terminal)
        seen = b""
        while b"loss" not in seen:
            seen += os.read(main_end, 4096)
        os.close(main_end)  # the terminal hangs up
        process.wait(timeout=60)
        self.assert_nothing_left()

    def test_ctrl_c_once_checkpoints_and_cancels(self):
        process = self.start_run(train_steps=1000000)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, err)
        result = json.loads(out)
        self.assertEqual(result["state"], "CANCELLED")
        self.assertIn(f"step-{result['steps']}", result["checkpoint"])
        self.assert_nothing_left()

    def test_ctrl_c_twice_kills_at_once(self):
        process = self.start_run(train_steps=1000000)
        stopped = self.box.processes("tutti-rank")[0]
        os.kill(stopped, signal.SIGSTOP)  # cannot take part in an orderly end
        process.send_signal(signal.SIGINT)
        # Equal signals that are still pending become one: the second must find the first one taken.
        wait_until(lambda: not self.is_pending(process.pid, signal.SIGINT), "the first Ctrl-C was read")
        self.assertIsNone(process.poll(), "still waiting for the checkpoint")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130)
        self.assert_nothing_left()

    def test_failing_rank_fails_the_job_when_the_budget_is_used_up(self):
        process = self.start_run(train_steps=1000000, restart_maxUserFailures=0)
        self.kill("tutti-rank", 0)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, err)
        self.assertEqual(json.loads(out)["state"], "FAILED")
        self.assert_nothing_left()

    def test_stopped_rank_is_found_and_replaced(self):  # FLT-12
        process = self.start_run(restart_collectiveTimeoutMs=2000)
        self.kill("tutti-rank", 1, signal.SIGSTOP)
        result = self.finish(process)
        self.assertEqual((result["state"], result["attempts"]), ("SUCCEEDED", 2))
        self.assertEqual(result["failures"][0]["rank"], 1)

    def test_second_coordinator_on_one_state_directory_refuses(self):  # DEP-03
        state = self.box.folder / "state"
        first = self.box.start("tutti-coordinator", "--state-dir", state, "--listen", "127.0.0.1:0")
        wait_until(lambda: (state / "address").exists(), "the first coordinator listens")
        code, _, err = self.box.call("tutti-coordinator", "--state-dir", state, "--listen", "127.0.0.1:0")
        self.assertNotEqual(code, 0)
        self.assertIn(str(first.pid), err)
        first.terminate()
        first.communicate(timeout=20)

    def test_two_runs_side_by_side_do_not_disturb_each_other(self):
        runs = [self.box.start("tutti", "run", self.box.write_job(f"side-{i}", train_epochs=1, resources_ranks=1), "-o", "json")
                for i in range(2)]
        for run in runs:
            out, err = run.communicate(timeout=90)
            self.assertEqual(run.returncode, 0, err)
            self.assertEqual(json.loads(out)["state"], "SUCCEEDED")
        self.assert_nothing_left()


if __name__ == "__main__":
    main()
