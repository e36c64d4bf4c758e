#!/usr/bin/env python3
"""Submits a job to a coordinator and follows it: the client itself is ten lines of Python.

Stubs come from the .proto files, without an installed package of ours:
  pip install grpcio-tools
  python3 -m grpc_tools.protoc -Iproto --python_out=examples --grpc_python_out=examples proto/tutti/v1/*.proto
Usage:  TUTTI_COORDINATOR=HOST:PORT TUTTI_TOKEN_FILE=FILE python3 examples/submit_and_follow.py JOB.json
where JOB.json is what `tutti submit job.yaml --dry-run -o json` prints: the spec with every default filled in.
"""
import json, os, sys, uuid  # noqa: E401

import grpc
from google.protobuf import json_format
from tutti.v1 import api_pb2, api_pb2_grpc, cluster_pb2, job_pb2

spec = json_format.ParseDict(json.load(open(sys.argv[1]))["spec"], job_pb2.JobSpec())
token = [("authorization", "Bearer " + open(os.environ["TUTTI_TOKEN_FILE"]).read().strip())]
jobs = api_pb2_grpc.JobServiceStub(grpc.insecure_channel(os.environ["TUTTI_COORDINATOR"]))
job = jobs.CreateJob(api_pb2.CreateJobRequest(uid=str(uuid.uuid4()), spec=spec), metadata=token, timeout=10).job
for event in jobs.WatchJobs(api_pb2.WatchJobsRequest(id=job.id), metadata=token):
    if event.HasField("step"):
        print(f"step {event.step.step} loss {event.step.loss:.4f}", flush=True)
    elif event.HasField("snapshot") or event.HasField("changed"):
        job = event.changed if event.HasField("changed") else event.snapshot
        print(job.id, cluster_pb2.JobState.Name(job.status.state), flush=True)
        if job.status.state >= cluster_pb2.JOB_STATE_SUCCEEDED:
            sys.exit(job.status.state != cluster_pb2.JOB_STATE_SUCCEEDED)
