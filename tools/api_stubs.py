"""Python stubs of our gRPC interface, for tests and benches: with FOLDER on PYTHONPATH, `tutti.v1.*_pb2*` can be imported.

Usage: api_stubs.py FOLDER
"""
import pathlib
import shutil
import subprocess
import sys

PYTHON = "/usr/bin/python3"  # the interpreter that Debian's python3-grpcio belongs to, whatever comes first in PATH
PROTO = pathlib.Path(__file__).resolve().parent.parent / "proto"


def generate(folder):
    """Writes the stubs under `folder`."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    plugin = shutil.which("grpc_python_plugin")
    if plugin is None:
        raise RuntimeError("grpc_python_plugin is missing: tools/setup.sh installs it (protobuf-compiler-grpc)")
    subprocess.run(["protoc", f"-I{PROTO}", f"--python_out={folder}", f"--grpc_python_out={folder}",
                    f"--plugin=protoc-gen-grpc_python={plugin}", *sorted(map(str, PROTO.glob("tutti/v1/*.proto")))], check=True)


if __name__ == "__main__":
    generate(sys.argv[1])
