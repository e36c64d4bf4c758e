#!/usr/bin/env python3
"""Checks the borders and habits that a compiler does not: who may include whom, banned calls, file and function size.

Usage: lint.py ROOT          every finding as path:line: what (use this instead); exit 1 if there is one
       lint.py --self-test   proves that each rule catches a violation and passes clean code
"""
import pathlib
import re
import subprocess
import sys

# folder -> folders that it may include (itself always). A test may include its folder's own allowance and what tests share.
ENGINE_PURE = ["base", "tutti", "engine/graph", "engine/ops", "engine/passes", "engine/nn", "engine/plan"]
ARROWS = {
    "base": [],
    "job": ["base", "tutti"],
    "engine/graph": ["base", "tutti"],
    "engine/ops": ["base", "tutti", "engine/graph", "engine/runtime/cpu"],  # the CPU part: only *_cpu files, see BORDERS
    "engine/passes": ENGINE_PURE,
    "engine/nn": ENGINE_PURE,
    "engine/plan": ENGINE_PURE + ["engine/comm", "engine/data", "engine/optim"],  # their pure arithmetic headers
    "engine/runtime": ENGINE_PURE + ["engine/runtime"],
    "engine/comm": ["base", "tutti"],
    "engine/optim": ENGINE_PURE + ["engine/runtime"],
    "engine/data": ["base", "tutti"],
    "engine/checkpoint": ["base", "tutti", "engine/data"],
    "engine/train": ["base", "tutti", "engine"],
    "coordinator/core": ["base", "tutti", "coordinator/schedule"],
    "coordinator/schedule": ["base", "tutti", "coordinator/core"],
    "coordinator/store": ["base", "tutti", "coordinator/core"],
    "coordinator/rpc": ["base", "tutti", "job", "coordinator", "engine/plan"],
    "coordinator": ["base", "tutti", "job", "coordinator", "engine/plan"],
    "worker/agent": ["base", "tutti"],
    "worker/launch": ["base", "tutti", "worker/agent", "engine/comm"],
    "worker/shim": ["base", "tutti", "worker/launch", "engine/comm"],
    "worker/probe": ["base", "tutti"],
    "worker/rpc": ["base", "tutti", "worker"],
    "worker/rank": ["base", "tutti", "engine"],
    "worker": ["base", "tutti", "worker"],
    "cli": ["base", "tutti", "job", "engine/data", "engine/checkpoint", "engine/plan", "engine/nn"],
    "tools": ["base", "tutti", "engine", "job"],
}

# (what may stand in #include, pattern of paths that may include it, the words)
BORDERS = [
    (r"grpc|\.grpc\.pb\.h", r"^(coordinator/rpc/|worker/rpc/|cli/|.*main\.cc$)", "gRPC belongs in */rpc, cli and main files"),
    (r"yaml-cpp/", r"^job/", "yaml-cpp belongs in job/"),
    (r"sqlite3\.h", r"^coordinator/store/", "SQLite belongs in coordinator/store"),
    (r"gloo/", r"^engine/comm/", "gloo belongs in engine/comm"),
    (r"dnnl", r"^(engine/runtime/|engine/ops/.*_cpu[^/]*$|engine/optim/.*_cpu[^/]*$)", "oneDNN belongs in engine/runtime and *_cpu files"),
    (r"engine/runtime/", r"^(engine/runtime/|engine/ops/.*_cpu[^/]*$|engine/optim/.*_cpu[^/]*$|engine/train/|worker/rank/|tools/)",
     "device code stays out of what the coordinator links"),
    (r"(cuda|cudnn|nccl|cublas)[^/]*\.h", r"^(engine/.*cuda|engine/comm/nccl|.*_cuda\.cu$)", "CUDA headers belong in cuda folders"),
    (r"spdlog/", r"^base/", "logging goes through base/log.h"),
    (r"openssl/", r"^(base/|coordinator/rpc/)", "digests go through base/digest.h"),
]

# (pattern, paths that may, what to use)
BANNED = [
    (r"\bsleep_for\(|\busleep\(|\bnanosleep\(|\bsleep\(\d", r"^$", "wait for a condition with a deadline"),
    (r"(?<![\w.>])(?:std::)?rand\(\)|\bsrand\(|std::random_device", r"^base/", "Philox (base/philox.h) or NewUlid"),
    (r"(?<![\w:.>])(?:std::)?system\(|\bpopen\(", r"^$", "Spawn (base/process.h): argv is a list, no shell"),
    (r"(?<![\w:.>])v?fork\(\)", r"^$", "Spawn (base/process.h)"),
    (r"\bposix_spawnp?\(", r"^base/", "Spawn (base/process.h)"),
    (r"(?<![\w.>])(?:std::)?getenv\(", r"^base/", "GetEnv (base/process.h)"),
    (r"system_clock::now|steady_clock::now", r"^(base/|tests/|tools/)", "Clock (base/clock.h)"),
    (r"std::[io]?fstream|(?<![\w.>])(?:std::)?fopen\(", r"^(base/|tests/|tools/)", "base/files.h"),
    (r"catch \(\.\.\.\) *\{ *\}|\(void\)\s*status", r"^$", "handle the error or pass it on"),
    (r"\b(?:TO" r"DO|FIX" r"ME|XXX)\b", r"^$", "finish it, or file an issue"),
    (r"(?<![\w.>:])(?:std::)?exit\(", r"^(.*main\.cc$|tests/|tools/|base/)", "return a Status; only main exits"),
    (r"using namespace std", r"^$", "name what you use"),
]

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70


def strip_comments(line):
    line = re.sub(r'"(?:\\.|[^"\\])*"', '""', line)
    return re.sub(r"//.*", "", line)


def folder_of(path):
    parts = path.split("/")
    for depth in (2, 1):
        folder = "/".join(parts[:depth])
        if len(parts) > depth and folder in ARROWS:
            return folder
    return None


def check_includes(path, lines):
    is_test = path.startswith("tests/")
    home = folder_of(path)
    for number, line in enumerate(lines, 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if not match:
            continue
        target = match.group(2)
        for what, where, words in BORDERS:
            if re.search(what, target) and not is_test and not re.search(where, path):
                yield number, f"includes {target}", words
        if match.group(1) == '"' and home and "/" in target:
            if target.startswith("absl/"):
                continue
            allowed = ARROWS[home] + [home]
            if not any(target.startswith(a + "/") for a in allowed):
                yield number, f"{home} includes {target}", f"allowed: {', '.join(allowed)}"


def check_calls(path, lines):
    for number, line in enumerate(lines, 1):
        code = strip_comments(line) if "XXX" not in line and "DO" not in line else line
        for what, where, words in BANNED:
            if re.search(what, code) and not re.search(where, path):
                yield number, f"banned: {re.search(what, code).group(0).strip()}", words


def check_size(path, lines):
    if len(lines) > MAX_FILE_LINES:
        yield len(lines), f"{len(lines)} lines", f"a file past {MAX_FILE_LINES} lines is asking to be two"
    start = None
    for number, line in enumerate(lines, 1):
        if re.match(r"^[A-Za-z_].*[({,]\s*$|^[A-Za-z_].*\) (const |override |noexcept )*\{$", line) and "namespace" not in line:
            if start is None and not re.match(r"^(class|struct|enum|union|extern|const|constexpr|static const|inline const)\b", line):
                start = number
        if line.startswith("}"):
            if start is not None and number - start > MAX_FUNCTION_LINES and not line.startswith("};"):
                yield start, f"function of {number - start} lines", f"at most {MAX_FUNCTION_LINES}: leave control flow, move leaves out"
            start = None


def check_header(path, lines):
    if path.endswith(".h") and not any(line.strip() == "#pragma once" for line in lines):
        yield 1, "no #pragma once", "add it after the file's comment"


def check_file(path, text):
    lines = text.splitlines()
    for rule in (check_includes, check_calls, check_size, check_header):
        for number, what, words in rule(path, lines):
            yield f"{path}:{number}: {what} ({words})"


def check_registration(root, files):
    """A test file that no CMakeLists names never runs."""
    for path in files:
        if path.startswith("tests/") and path.endswith("_test.cc"):
            listing = root / pathlib.Path(path).parent / "CMakeLists.txt"
            if not listing.exists() or pathlib.Path(path).name not in listing.read_text():
                yield f"{path}:1: not in {listing.relative_to(root)} (register it, or it never runs)"


def self_test():
    bad = {
        "coordinator/core/x.cc": '#include "engine/runtime/cpu/program.h"\n#include <grpcpp/grpcpp.h>\n',
        "engine/nn/x.cc": '#include "job/job_file.h"\n#include <yaml-cpp/yaml.h>\n#include <dnnl.hpp>\n',
        "worker/agent/x.cc": '#include "engine/train/trainer.h"\n',
        "cli/a.cc": "void F() {\n  std::this_thread::sleep_for(1s);\n}\n",
        "cli/b.cc": "int x = rand();\n",
        "cli/c.cc": 'int x = system("ls");\n',
        "cli/d.cc": "auto p = fork();\n",
        "cli/e.cc": 'auto p = getenv("X");\n',
        "cli/f.cc": "auto t = std::chrono::steady_clock::now();\n",
        "cli/g.cc": "std::ofstream out;\n",
        "cli/h.cc": "try { F(); } catch (...) {}\n",
        "cli/i.cc": "// TO" "DO: later\n",
        "cli/j.cc": "\n" * 600,
        "cli/k.cc": "int F() {\n" + "  G();\n" * 80 + "}\n",
        "cli/l.h": "int F();\n",
        "cli/m.cc": "void F() { exit(1); }\n",
    }
    for path, text in bad.items():
        assert list(check_file(path, text)), f"not caught: {path}: {text[:60]!r}"
    good = {
        "coordinator/core/x.cc": '#include "base/status.h"\n#include "tutti/v1/job.pb.h"\n// sleep_for( in words is fine\n',
        "coordinator/rpc/x.cc": "#include <grpcpp/grpcpp.h>\n",
        "engine/ops/dense/dense_cpu.cc": '#include "engine/runtime/cpu/kernel.h"\n#include <dnnl.hpp>\n',
        "cli/x.h": "#pragma once\nint F();\n",
    }
    for path, text in good.items():
        assert not list(check_file(path, text)), f"wrongly refused: {list(check_file(path, text))}"
    print(f"lint self-test: {len(bad)} violations caught, {len(good)} clean files passed")


def main():
    if sys.argv[1] == "--self-test":
        self_test()
        return 0
    root = pathlib.Path(sys.argv[1])
    listed = subprocess.run(["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard"], capture_output=True, text=True)
    names = listed.stdout.split() if listed.returncode == 0 else [str(p.relative_to(root)) for p in root.rglob("*") if "build" not in p.parts]
    files = [n for n in names if re.search(r"\.(cc|h|cu|cuh)$", n) and (root / n).exists()]
    findings = [f for n in files for f in check_file(n, (root / n).read_text(errors="replace"))]
    findings += list(check_registration(root, files))
    print("\n".join(findings))
    print(f"lint: {len(files)} files, {len(findings)} findings")
    return 1 if findings or not files else 0


sys.exit(main())
