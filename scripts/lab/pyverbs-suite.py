#!/usr/bin/env python3
"""Runs pyverbs' own tests, each in a process of its own, and compares with what is expected.

usage: pyverbs-suite.py SUITE RESULTS DEVICE EXPECTED SKIPPED [FILE...]

SUITE is the folder tests of rdma-core. RESULTS gets pyverbs.tsv (outcome, test and why of each
test) and pyverbs.expected, what was found in the form of EXPECTED. Ends with 1 if that is worse: a
file with fewer tests passed or more failed, or a skip for a reason that EXPECTED does not know.

SKIPPED names tests that skip, and why; /dev/null for none. A test that skips judges nothing and
takes as long as another: of those of a file that skip for one reason only the first is run. If it
does not skip for that reason, all are run. RESULTS gets pyverbs.skipped, those that skipped now.
"""
import collections
import importlib
import os
import re
import signal
import sys
import time
import traceback
import unittest

# Ends a test that hangs; a machine with much else to do takes a minute for some.
LIMIT_S = 300

# Why the model may lack what a test asks for: pattern of the test's own reason, explanation.
# A skip that nothing here explains counts as failed.
EXPLANATIONS = [
    (r'non EFA device', 'for the devices of another vendor'),
    (r'cuda-python', 'needs a GPU'),
    (r'/dev/dri/renderD', 'needs a GPU'),
    (r'PCI device must be passed', "needs the port without its driver; vfio scenarios do that"),
    (r'DrTable|DrRule|DrDomain',
     'rules that rdma-core writes itself (sw_owner, into memory of the device) are not advertised'),
    (r'modify header', 'changes of headers (header_modify) are not advertised'),
    (r'support reformat', 'tunnel headers (reformat) are not advertised'),
    (r'geneve fields', 'matching inside tunnels is not advertised'),
    (r'on cx5/6', 'newer than the ConnectX-5, says the test'),
    (r'HCA CAPs 2', 'doorbells without a record (hca_cap_2) are newer than the ConnectX-5'),
    (r'UAR allocation', 'the driver finds no write combining: QEMU traps each store'),
    (r'VAR allocation', 'emulated virtio devices come with ConnectX-6 Dx'),
    (r'Create Mkey', 'signatures (sho) are not advertised'),
    (r'schedule elements|Packet pacing', 'quality of service (qos) is not advertised'),
    (r'UDP sport', 'a UDP port for a queue pair that runs (rts2rts) is not advertised'),
    (r'reserved QP number', 'reserved numbers of queue pairs are not advertised'),
    (r'Create Mlx5DV QP', 'MMO and pipelined signatures are not advertised'),
    (r'DC QP|DCI caps|SkipTest occurred on', 'DC transport (dct) is not advertised'),
    (r'additional access flags 64', 'on-demand paging (pg) is not advertised'),
    (r'ODP', 'on-demand paging (pg) is not advertised'),
    (r'MEMIC atomic', 'operations at addresses of device memory are newer than the ConnectX-5'),
    (r'Tag matching', 'tag matching (rndv_offload_rc) is not advertised'),
    (r'Crypto login', 'encryption comes with ConnectX-6 Dx'),
    (r'LAG affinity', 'link aggregation (lag_master) is not advertised'),
    (r'OOO', 'out-of-order receive is newer than the ConnectX-5'),
    (r'CQE 128B', '128-byte CQEs (cqe_compression_128, cqe_128_always) are not advertised'),
    (r'additional access flags 258|Extended QP is not supported',
     'the driver offers FLUSH and ATOMIC WRITE on no device'),
    (r'SRQ resize', 'the driver resizes no SRQ on any device'),
    (r'switchdev|ROCE must be disabled|Eswitch', 'needs an e-switch manager or no RoCE'),
]


class Verdict(unittest.TestResult):
    """Keeps the worst that happened to one test, sub-tests and set-up included."""

    def __init__(self):
        super().__init__()
        self.outcome, self.why = 'passed', ''

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        if self.outcome == 'passed':
            self.outcome, self.why = 'skipped', reason

    def addError(self, test, err):
        super().addError(test, err)
        self.fail(err)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.fail(err)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.fail(err)

    def fail(self, err):
        traceback.print_exception(*err)
        self.outcome, self.why = 'failed', f'{err[0].__name__}: {err[1]}'


def tests_of(group):
    for test in group:
        if isinstance(test, unittest.TestSuite):
            yield from tests_of(test)
        else:
            yield test


def run(test):
    """In a child: a test that hangs or crashes takes nobody with it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(reader)
        verdict = Verdict()
        unittest.TestSuite([test]).run(verdict)
        os.write(writer, f'{verdict.outcome}\t{" ".join(verdict.why.split())}'[:4000].encode())
        sys.stdout.flush()
        os._exit(0)
    os.close(writer)
    deadline = time.monotonic() + LIMIT_S
    status = None
    while status is None:
        pid, ended = os.waitpid(child, os.WNOHANG)
        if pid:
            status = ended
        elif time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reader)
            return 'failed', f'not over after {LIMIT_S} s'
        else:
            time.sleep(0.01)
    said = os.read(reader, 4096).decode()
    os.close(reader)
    if os.WIFSIGNALED(status):
        return 'failed', f'ended by signal {os.WTERMSIG(status)}'
    outcome, _, why = said.partition('\t')
    return (outcome, why) if outcome else ('failed', 'said nothing')


def explained(outcome, why):
    """The outcome, and what stands behind a skip."""
    if outcome != 'skipped':
        return outcome, why
    for pattern, explanation in EXPLANATIONS:
        if re.search(pattern, why):
            return outcome, explanation
    return 'failed', f'skipped for no known reason: {why}'


def known_skips(path):
    """Why a test skips, by its name."""
    with open(path) as lines:
        return dict(line.strip().split(': ', 1) for line in lines if not line.startswith('#'))


def run_all(suite, results, device, skips, files):
    """One (file, outcome, why) for each test."""
    from args_parser import parser
    sys.argv[1:] = ['--dev', device, '--port', '1']
    parser.parse_args()
    # Whether the first test of a file that is to skip for a reason did so.
    first = {}
    with (open(f'{results}/pyverbs.tsv', 'w', buffering=1) as out,
          open(f'{results}/pyverbs.skipped', 'w') as skipped):
        for file in files or sorted(os.listdir(suite)):
            name = file.removesuffix('.py')
            if not name.startswith('test_'):
                continue
            module = importlib.import_module(f'tests.{name}')
            for test in tests_of(unittest.defaultTestLoader.loadTestsFromModule(module)):
                ident = test.id().removeprefix('tests.')
                expected = 'skipped', skips.get(ident)
                group = name, expected[1]
                if first.get(group):
                    print(f'== {ident}\n   not run: another skips for the same reason', flush=True)
                    outcome, why = found = expected
                else:
                    start = time.monotonic()
                    print(f'== {ident}', flush=True)
                    outcome, why = run(test)
                    print(f'   {outcome} in {time.monotonic() - start:.1f} s {why}', flush=True)
                    found = explained(outcome, why)
                    if ident in skips:
                        first.setdefault(group, found == expected)
                out.write(f'{outcome}\t{ident}\t{why}\n')
                if found[0] == 'skipped':
                    skipped.write(f'{ident}: {found[1]}\n')
                yield (name, *found)


def table(found):
    """What was found as lines: the counts of each file, then its skips and failures."""
    files, reasons = {}, collections.Counter()
    for name, outcome, why in found:
        files.setdefault(name, collections.Counter())[outcome] += 1
        if outcome != 'passed':
            reasons[name, outcome, why] += 1
    total = collections.Counter()
    for name, counts in files.items():
        total += counts
        yield f'{name:24}{counts["passed"]:5}{counts["skipped"]:5}{counts["failed"]:5}'
        for (file, outcome, why), count in reasons.items():
            if file == name:
                yield f'  {outcome} {count}: {why}'
    yield f'{"total":24}{total["passed"]:5}{total["skipped"]:5}{total["failed"]:5}'


def parse(lines):
    """Passed and failed tests by file, and what was skipped or failed where."""
    counts, reasons, name = {}, set(), ''
    for line in lines:
        if line.startswith('#'):
            continue
        if line.startswith('  '):
            outcome, _, why = line.strip().partition(': ')
            reasons.add((name, outcome.split()[0], why))
        else:
            name, passed, _, failed = line.split()
            counts[name] = int(passed), int(failed)
    return counts, reasons


def worse(expected, found):
    """Says where what was found is worse than what was expected."""
    counts, reasons = parse(expected)
    new_counts, new_reasons = parse(found)
    for name, (passed, failed) in new_counts.items():
        before, failed_before = counts.get(name, (0, 0))
        if passed < before or failed > failed_before:
            yield f'{name}: {passed} passed, {failed} failed; expected {before}, {failed_before}'
    yield from (f'{name}: not run' for name in sorted(counts.keys() - new_counts.keys()))
    for name, outcome, why in sorted(new_reasons - reasons):
        yield f'{name}: {outcome}: {why}'


def main():
    suite, results, device, expected, skipped, *files = sys.argv[1:]
    sys.path.insert(0, suite)
    sys.path.insert(0, os.path.dirname(suite))
    head = [line for line in open(expected).read().splitlines() if line.startswith('#')]
    found = list(table(run_all(suite, results, device, known_skips(skipped), files)))
    with open(f'{results}/pyverbs.expected', 'w') as out:
        out.write('\n'.join(head + found) + '\n')
    with open(expected) as lines:
        complaints = list(worse(lines.read().splitlines(), found))
    print('== worse than expected:', *complaints or ['nothing'], sep='\n')
    sys.exit(1 if complaints else 0)


main()
