#!/usr/bin/env python3
"""Counts the test cases of a ctest run (googletest, unittest and plain tests), lists the skipped ones with their reasons.

Usage: test_summary.py LastTest.log
"""
import re
import sys


def main():
    text = open(sys.argv[1], encoding="utf-8", errors="replace").read()
    passed = failed = 0
    skipped = []
    for block in re.split(r"^-{10,}\n+(?=\d+/\d+ Testing: )", text, flags=re.M):
        head = re.search(r"^\d+/\d+ Testing: (\S+)", block, flags=re.M)
        if not head:
            continue
        cases_passed = len(re.findall(r"^\[       OK \]", block, flags=re.M))
        cases_failed = len(set(re.findall(r"^\[  FAILED  \] (\S+) \(", block, flags=re.M)))
        for ran in re.findall(r"^Ran (\d+) tests? in .*\n\n(?:OK|FAILED)(.*)$", block, flags=re.M):
            bad, skips_in = (sum(map(int, re.findall(rf"(?:{kind})=(\d+)", ran[1]))) for kind in ("failures|errors", "skipped"))
            cases_passed, cases_failed = cases_passed + int(ran[0]) - bad - skips_in, cases_failed + bad
        skips = re.findall(r"((?:.*\n){0,3})^\[  SKIPPED \] (\S+) \(", block, flags=re.M)
        skipped += re.findall(r"^(\S+) .*\.\.\. skipped (.*)$", block, flags=re.M)
        skipped += [(name, why.strip().splitlines()[-1] if why.strip() else "no reason given") for why, name in skips]
        good = "Test Passed." in block
        if cases_passed + cases_failed + len(skips) == 0:
            passed, failed = passed + good, failed + (not good)
        else:
            passed += cases_passed
            failed += cases_failed if cases_failed or good else 1
    for name, why in skipped:
        print(f"skipped {name}: {why}")
    print(f"{passed} passed, {failed} failed, {len(skipped)} skipped")


main()
