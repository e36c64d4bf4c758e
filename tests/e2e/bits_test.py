"""The same bits: the final weights depend on the job file and the seed alone."""
import json
import os
import signal

from harness import E2ETest, main, wait_until


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
        quiet = self.box.run_json(self.box.write_job("quiet", train_epochs=12))
        process = self.box.start("tutti", "run", self.box.write_job("killed", train_epochs=12, restart_backoffMs=10), "-o", "json")
        for kill, step in enumerate((40, 150)):
            # Somewhere in a step or a checkpoint: each step folder is a moment that differs by run.
            wait_until(lambda: any(int(p.name.split("-")[1].split(".")[0]) >= step for p in
                                   (self.box.folder / "runs/killed").glob("step-*.g*")), f"step {step}")
            victim = self.box.processes("tutti-rank")[kill % 2]
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda: victim not in self.box.processes("tutti-rank"), "the victim is gone")
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        result = json.loads(out)
        self.assertEqual(result["weightsSha256"], quiet["weightsSha256"])
        self.assertEqual(result["attempts"], 3)
        self.assertEqual(len(result["failures"]), 2)
        self.assertEqual(result["ledger"], {"epochs": 12, "exact": True})
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
