"""The cnn and mlp benches: samples per second of training, loader included, one process with both cores, f32, batch 128.

Tutti trains configs/jobs/fashion_mnist_MODEL.yaml (one rank, one shard, two threads); PyTorch trains the same model in its variants.
All alternate in every round; a round's ratio is Tutti against the best variant of that round, by the median step of each run.
Usage: train_speed.py cnn|mlp BUILD_BIN TORCH_PYTHON [--rounds N] [--steps N]
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
JOBS = HERE.parent.parent / "configs" / "jobs"
BATCH = 128
VARIANTS = {"cnn": ["eager", "channels_last", "compiled"], "mlp": ["eager", "compiled"]}
STEPS = {"cnn": 100, "mlp": 250}
WARMUP = 20
LIMIT_SECONDS = 1200  # of one run


def run(argv, cwd):
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, timeout=LIMIT_SECONDS)
    if done.returncode != 0:
        sys.exit("%s: exit code %d\n%s%s" % (" ".join(argv), done.returncode, done.stdout[-2000:], done.stderr[-4000:]))
    return json.loads(done.stdout.strip().splitlines()[-1])


def tutti_step_ms(model, binaries, steps, folder):
    job = JOBS / f"fashion_mnist_{model}.yaml"
    settings = ["resources.ranks=1", "numerics.shards=1", f"numerics.threads={min(2, os.cpu_count())}", f"train.steps={steps + WARMUP}",
                "train.evaluateAtEnd=false", "checkpoint.everySteps=0"]
    result = run([str(pathlib.Path(binaries) / "tutti"), "run", str(job), "-o", "json"] +
                 [word for setting in settings for word in ("--set", setting)], folder)
    return result["time"]["medianStepMs"], result["metrics"].get("train.loss")


def torch_step_ms(model, variant, python, steps, folder):
    result = run([python, str(HERE / "torch_train.py"), "--model", model, "--variant", variant, "--steps", str(steps),
                  "--warmup", str(WARMUP), "--threads", str(min(2, os.cpu_count())), "--batch", str(BATCH)], folder)
    return result["median_step_ms"], result["loss"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model", choices=sorted(VARIANTS))
    p.add_argument("binaries")
    p.add_argument("python")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int)
    a = p.parse_args()
    steps = a.steps or STEPS[a.model]
    rounds = []
    with tempfile.TemporaryDirectory(prefix="tutti-bench-") as folder:
        for i in range(a.rounds):
            ours, loss = tutti_step_ms(a.model, a.binaries, steps, folder)
            words = [f"tutti {ours:.1f}" + ("" if loss is None else f" (loss {loss:.3f})")]
            peers = {}
            for variant in VARIANTS[a.model]:
                peers[variant], loss = torch_step_ms(a.model, variant, a.python, steps, folder)
                words.append(f"{variant} {peers[variant]:.1f} (loss {loss:.3f})")
            rounds.append((ours, min(peers.values())))
            print(f"# round {i + 1}, ms a step: " + " · ".join(words), flush=True)
    rate = lambda step_ms: 1000 * BATCH / step_ms
    print("%s b%d tutti=%.0f/s peer=%.0f/s ratio=%.2f" % (
        a.model, BATCH, statistics.median(rate(ours) for ours, _ in rounds), statistics.median(rate(peer) for _, peer in rounds),
        statistics.median(peer / ours for ours, peer in rounds)))


main()
