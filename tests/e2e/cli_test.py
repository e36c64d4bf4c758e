"""What a new user types, mistakes included, and what the terminal says."""
import json

from harness import E2ETest, ROOT, main


class CommandLine(E2ETest):
    def test_all_mistakes_of_a_job_file_at_once(self):  # JOB-02, JOB-03
        job = self.box.write_job("bad")
        text = job.read_text().replace("learningRate:", "learning_rate:").replace("global: 24", "global: 26")
        job.write_text(text + "  train:\n    epochs: 1\n")
        code, out, err = self.box.call("tutti", "run", job)
        self.assertEqual(code, 2)
        self.assertIn("did you mean 'learningRate'", err)
        self.assertIn("26 is not divisible", err)
        self.assertIn("duplicate key 'train'", err)
        self.assertRegex(err, r"bad\.yaml:\d+:\d+: ")
        self.assertRegex(err, r"3 errors; nothing was started")
        self.assertEqual(self.box.processes(), [])

    def test_config_shows_where_each_value_comes_from(self):  # JOB-10
        job = self.box.write_job()
        code, out, err = self.box.call("tutti", "config", job, "--set", "optimizer.learningRate=0.1")
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"learningRate: 0\.1 .*--set")
        self.assertRegex(out, r"global: 24 .*job\.yaml:\d+")
        self.assertRegex(out, r"beta1: 0\.9 .*default")

    def test_plan_lists_what_weight_decay_applies_to(self):  # OPT-02
        job = self.box.write_job("decay", "cnn", optimizer_weightDecay=0.1)

        def plan(*options):
            code, out, err = self.box.call("tutti", "plan", job, *options)
            self.assertEqual(code, 0, err)
            return out

        decayed = ["layers.0.weight", "layers.5.weight", "layers.8.weight"]
        left = ["layers.0.bias", "layers.1.weight", "layers.1.bias", "layers.5.bias", "layers.8.bias"]
        # Images of 8 x 8: conv 8 x 1 x 3 x 3, after the pool 8 x 4 x 4 features, dense 32, dense 10.
        counts = (8 * 9 + 32 * 8 * 4 * 4 + 10 * 32, 8 + 8 + 8 + 32 + 10)
        self.assertIn(f"decay     0.1 on 3 tensors ({counts[0]:,} parameters), none on 5 ({counts[1]}: biases and normalisation)\n",
                      plan())
        groups = json.loads(plan("-o", "json"))["decayGroups"]
        self.assertEqual([(g.get("weightDecay", 0), g["names"], int(g["tensors"]), int(g["parameters"])) for g in groups],
                         [(0.1, decayed, 3, counts[0]), (0, left, 5, counts[1])])
        wide = plan("-o", "wide")
        for names, decay in ((decayed, "0.1"), (left, "0")):
            for name in names:
                self.assertRegex(wide, rf"(?m)^{name} +{decay}$")
        self.assertIn(f"decay     0.1 on 8 tensors ({sum(counts):,} parameters)\n",
                      plan("--set", "optimizer.decayBiasAndNorm=true"))
        self.assertNotIn("decay  ", plan("--set", "optimizer.weightDecay=0"))

    def test_plan_prints_memory_and_time_and_starts_nothing(self):
        code, out, err = self.box.call("tutti", "plan", ROOT / "configs/jobs/fashion_mnist_cnn.yaml")
        self.assertEqual(code, 0, err)
        self.assertIn("421,642 parameters", out)  # 32*9+32 + 64*32*9+64 + 3136*128+128 + 1280+10
        self.assertEqual(self.box.processes(), [])

    def test_what_cannot_fit_is_refused_before_any_rank_starts(self):
        job = self.box.write_job("huge")
        huge = "      - dense: {units: 16777216}\n"  # two in a row: a PiB, more than any machine has
        job.write_text(job.read_text().replace("      - dense: {units: 32}\n", 2 * huge))
        for verb in ("plan", "run"):
            code, out, err = self.box.call("tutti", verb, job)
            self.assertEqual(code, 3, (verb, out, err))
            self.assertRegex(err, r"does not fit: rank needs [\d,.]+ [GT]iB, slot has [\d.]+ GiB\n  weights .*\nwould fit: ")
            self.assertNotIn("RECOVERING", out + err)
        self.assertEqual(self.box.processes(), [])

    def test_wrong_verb_option_and_file_are_said_with_exit_code_2(self):
        for argv, words in ((["rum", "x.yaml"], "run"), (["run", "--no-such"], "no-such"), (["run", "absent.yaml"], "absent.yaml"),
                            (["run"], "FILE")):
            code, out, err = self.box.call("tutti", *argv)
            self.assertEqual(code, 2, (argv, out, err))
            self.assertIn(words, err)

    def test_missing_data_is_one_clear_error(self):  # DAT-02, DAT-09
        job = self.box.write_job("absent")
        job.write_text(job.read_text().replace("data/images.idx", "data/absent.idx"))
        code, out, err = self.box.call("tutti", "run", job)
        self.assertNotEqual(code, 0)
        self.assertIn("data/absent.idx", out + err)
        self.assert_nothing_left()
        labels = self.box.folder / "data" / "labels.idx"
        raw = bytearray(labels.read_bytes())
        raw[8 + 7] = 13
        labels.write_bytes(raw)
        code, out, err = self.box.call("tutti", "run", self.box.write_job("label"))
        self.assertNotEqual(code, 0)
        for words in ("labels.idx", "13", "7", "9"):  # file, value, row, range 0..9
            self.assertIn(words, out + err)
        self.assert_nothing_left()

    def test_plain_output_has_plan_steps_evaluation_and_result(self):
        code, out, err = self.box.call("tutti", "run", self.box.write_job())
        self.assertEqual(code, 0, err)
        for words in ("plan ", "parameters", "step", "loss", "eval", "done", "SUCCEEDED", "exact", "sha256", "memory"):
            self.assertIn(words, out)
        self.assertNotIn("\r", out)
        self.assertNotIn("\x1b", out)
        self.assert_nothing_left()

    def test_json_output_is_one_object_with_the_documented_fields(self):
        result = self.box.run_json(self.box.write_job())
        for field in ("job", "name", "state", "attempts", "generation", "ranks", "steps", "samples", "metrics", "weightsSha256",
                      "checkpoint", "ledger", "memory", "time", "failures"):
            self.assertIn(field, result)
        self.assert_plan_holds(result["memory"])
        for field in ("submitToFirstStepMs", "medianStepMs", "wallSeconds", "samplesPerSecond"):
            self.assertGreater(result["time"][field], 0)

    def assert_plan_holds(self, memory):
        self.assertEqual(memory["plannedArenaBytes"], memory["measuredArenaBytes"])
        self.assertAlmostEqual(memory["plannedResidentBytes"] / memory["measuredResidentBytes"], 1, delta=0.10)

    def test_resident_plan_of_small_jobs_holds_whatever_the_layers(self):  # libraries and generated code outweigh their arena
        for model in ("cnn", "mlp"):
            for threads in (1, 2):
                job = self.box.write_job(f"{model}-{threads}", model=model, numerics_threads=threads, resources_ranks=1)
                with self.subTest(model=model, threads=threads):
                    self.assert_plan_holds(self.box.run_json(job)["memory"])

    def test_resume_of_an_absent_checkpoint_fails_and_names_it(self):  # CKP-14
        job = self.box.write_job("absent", checkpoint_resume="path", checkpoint_resumeFrom="/no/such/run")
        code, out, err = self.box.call("tutti", "run", job)
        self.assertNotEqual(code, 0)
        self.assertIn("/no/such/run", out + err)
        self.assert_nothing_left()

    def test_help_and_version(self):
        for verb in ("run", "plan", "config", "submit", "get", "describe", "logs", "cancel", "verify", "nodes", "version"):
            code, out, err = self.box.call("tutti", verb, "--help")
            self.assertEqual(code, 0, err)
            self.assertIn("tutti " + verb, out)
        code, out, _ = self.box.call("tutti", "version")
        self.assertEqual(code, 0)
        self.assertRegex(out, r"\d+\.\d+\.\d+")


if __name__ == "__main__":
    main()
