#!/usr/bin/env python3
"""Runs rdma-core's own tests (pyverbs) through libibverbs.so.1, in one process, and compares.

usage: cxctl run -- /usr/bin/python3 scripts/rdma/suite.py SUITE EXPECTED

SUITE is the folder tests of rdma-core (Debian: /usr/share/doc/rdma-core/tests, unpacked). EXPECTED
lists each test that is to pass, and each that is known to fail, behind a minus. Ends with 1 if one
of the first did not pass, or one fails that is not known to; what passes beyond that is told.
"""
import os
import sys
import unittest

suite, expected = sys.argv[1:]
sys.argv = [sys.argv[0], '--dev', 'ferrocx0']
sys.path[:0] = [suite, os.path.dirname(os.path.abspath(suite))]

from args_parser import parser  # noqa: E402
parser.parse_args()
from tests.base import RDMATestCase  # noqa: E402
import tests  # noqa: E402


def told(case, device, port, index):
    """What the suite would read of the port in sysfs: an address of its network interface."""
    case.args.append([device, port, index, '127.0.0.1', '02:00:7f:58:00:01'])


RDMATestCase._get_ip_mac = told


class Result(unittest.TextTestResult):
    passed = set()

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed.add(test.id())


loaded = unittest.defaultTestLoader.loadTestsFromModule(tests)
result = unittest.TextTestRunner(resultclass=Result, verbosity=0, stream=sys.stderr).run(loaded)
failed = {test.id() for test, _ in result.failures + result.errors}
with open(expected) as lines:
    names = [line.strip() for line in lines if line.strip() and not line.startswith('#')]
known = {name[1:] for name in names if name.startswith('-')}
lost = {name for name in names if not name.startswith('-')} - Result.passed
print(f'{len(Result.passed)} passed, {len(result.skipped)} skipped, {len(failed)} failed')
for name in sorted(lost):
    print(f'worse: {name} did not pass')
for name in sorted(failed - known):
    print(f'worse: {name} failed')
for name in sorted(Result.passed - set(names)):
    print(f'new: {name}')
sys.stdout.flush()
os._exit(1 if lost or failed - known else 0)
