"""The cnn and mlp benches: samples per second of training, loader included, one process with both cores, f32, batch 128.

Tutti trains configs/jobs/fashion_mnist_MODEL.yaml (one rank, one shard, two threads); PyTorch trains the same model in its variants.
All alternate in every round; a round's ratio is Tutti against the best variant of that round, by the median step of each run.

The case two-ranks compares a step of two ranks (two shards, one thread each) with its ideal in the same round: the slower of two
unconnected ranks that train half the batch side by side, each on its core, plus the bytes that a rank must receive in an all-reduce
at the rate at which both cores copy memory at once (the lower bound of Patarasuk and Yuan, 2009: 2 (n - 1) / n of the gradients).
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


def start(argv, cwd, core=None):
    pin = None if core is None else lambda: os.sched_setaffinity(0, {core})
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, preexec_fn=pin)


def output(process):
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    if process.returncode != 0:
        sys.exit("%s: exit code %d\n%s%s" % (" ".join(process.args), process.returncode, out[-2000:], err[-4000:]))
    return out


def result(process):
    """What the last line that a program wrote says."""
    return json.loads(output(process).strip().splitlines()[-1])


def tutti(model, binaries, folder, command, core=None, **settings):
    job = JOBS / f"fashion_mnist_{model}.yaml"
    settings = {"train.evaluateAtEnd": "false", "checkpoint.everySteps": 0, **{k.replace("_", "."): v for k, v in settings.items()}}
    return start([str(pathlib.Path(binaries) / "tutti"), command, str(job), "-o", "json"] +
                 [word for key, value in settings.items() for word in ("--set", f"{key}={value}")], folder, core)


def tutti_step_ms(model, binaries, steps, folder):
    done = result(tutti(model, binaries, folder, "run", resources_ranks=1, numerics_shards=1,
                        numerics_threads=min(2, os.cpu_count()), train_steps=steps + WARMUP))
    return done["time"]["medianStepMs"], done["metrics"].get("train.loss")


def two_ranks_ms(model, binaries, python, steps, folder):
    """(step of two ranks, compute of the ideal, exchange of the ideal), milliseconds."""
    sizes = dict(numerics_threads=1, train_steps=steps + WARMUP)
    pair = dict(resources_ranks=2, numerics_shards=2, **sizes)
    cores = sorted(os.sched_getaffinity(0))[:2]
    together = result(tutti(model, binaries, folder, "run", **pair))["time"]["medianStepMs"]
    apart = [tutti(model, binaries, folder, "run", core, resources_ranks=1, numerics_shards=1, batch_global=BATCH // 2,
                   checkpoint_directory=tempfile.mkdtemp(dir=folder), **sizes) for core in cores]
    compute = max([result(process)["time"]["medianStepMs"] for process in apart])
    plan = json.loads(output(tutti(model, binaries, folder, "plan", **pair)))
    rate = result(start([python, str(HERE / "copy_speed.py"), *map(str, cores)], folder))
    return together, compute, 1000 * plan["step"]["exchangedBytes"] / rate


def torch_step_ms(model, variant, python, steps, folder):
    done = result(start([python, str(HERE / "torch_train.py"), "--model", model, "--variant", variant, "--steps", str(steps),
                         "--warmup", str(WARMUP), "--threads", str(min(2, os.cpu_count())), "--batch", str(BATCH)], folder))
    return done["median_step_ms"], done["loss"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model", choices=sorted(VARIANTS))
    p.add_argument("binaries")
    p.add_argument("python")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int)
    a = p.parse_args()
    steps = a.steps or STEPS[a.model]
    rounds, pairs = [], []
    with tempfile.TemporaryDirectory(prefix="tutti-bench-") as folder:
        for i in range(a.rounds):
            ours, loss = tutti_step_ms(a.model, a.binaries, steps, folder)
            words = [f"tutti {ours:.1f}" + ("" if loss is None else f" (loss {loss:.3f})")]
            peers = {}
            for variant in VARIANTS[a.model]:
                peers[variant], loss = torch_step_ms(a.model, variant, a.python, steps, folder)
                words.append(f"{variant} {peers[variant]:.1f} (loss {loss:.3f})")
            rounds.append((ours, min(peers.values())))
            pairs.append(two_ranks_ms(a.model, a.binaries, a.python, steps, folder))
            words.append("two ranks %.1f, ideal %.1f + %.1f" % pairs[-1])
            print(f"# round {i + 1}, ms a step: " + " · ".join(words), flush=True)
    rate = lambda step_ms: 1000 * BATCH / step_ms
    print("%s b%d tutti=%.0f/s peer=%.0f/s ratio=%.2f" % (
        a.model, BATCH, statistics.median(rate(ours) for ours, _ in rounds), statistics.median(rate(peer) for _, peer in rounds),
        statistics.median(peer / ours for ours, peer in rounds)))
    ideals = [(together, compute + exchange) for together, compute, exchange in pairs]
    print("%s two-ranks tutti=%.1fms peer=%.1fms ratio=%.3f" % (
        a.model, statistics.median(together for together, _ in ideals), statistics.median(ideal for _, ideal in ideals),
        statistics.median(ideal / together for together, ideal in ideals)))


main()
