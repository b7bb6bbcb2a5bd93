#!/usr/bin/env python3
"""A guest that QEMU migrates over RDMA while it runs; its memory is compared.

    migrate.py CXCTL GUEST [CAPABILITY...]

Starts two QEMUs by `CXCTL run`, each with a software ConnectX of its own. GUEST is what guest.c
makes. A CAPABILITY is one of QEMU's for migrations: rdma-pin-all.
"""
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

PLACE = 'rdma:127.0.0.1:14340'
MEMORY_MIB = 64
# What the guest prints for a round in which all of its memory was as it wrote it.
WHOLE = b'.'


class Machine:
    """A QEMU, and the socket by which it is told what to do."""

    def __init__(self, folder, name, cxctl, guest, *options):
        self.console, self.memory, path = (
            folder / f'{name}.{kind}' for kind in ('console', 'memory', 'qmp'))
        self.process = subprocess.Popen([
            cxctl, 'run', '--', 'qemu-system-x86_64', '-accel', 'tcg', '-machine', 'pc',
            '-m', str(MEMORY_MIB), '-nodefaults', '-display', 'none', '-kernel', guest,
            '-debugcon', f'file:{self.console}', '-qmp', f'unix:{path},server=on,wait=off',
            *options])
        channel = socket.socket(socket.AF_UNIX)
        while channel.connect_ex(str(path)) != 0:
            self.check()
            time.sleep(0.05)
        self.channel = channel.makefile('rw')
        self.channel.readline()
        self.tell('qmp_capabilities')

    def check(self):
        if self.process.poll() is not None:
            sys.exit(f'QEMU ended with status {self.process.returncode}')

    def tell(self, command, **arguments):
        json.dump({'execute': command, 'arguments': arguments}, self.channel)
        self.channel.flush()
        for answer in map(json.loads, self.channel):
            if 'return' in answer:
                return answer['return']
            if 'error' in answer:
                sys.exit(f'{command}: {answer["error"]["desc"]}')
        sys.exit(f'{command}: QEMU ended')

    def rounds(self):
        return self.console.read_bytes()

    def wait_for_rounds(self, count):
        while len(self.rounds()) < count:
            self.check()
            time.sleep(0.1)

    def dump(self):
        self.tell('pmemsave', val=0, size=MEMORY_MIB << 20, filename=str(self.memory))
        return self.memory.read_bytes()


def migrate(here, there, capabilities):
    for machine in here, there:
        machine.tell('migrate-set-capabilities', capabilities=[
            {'capability': name, 'state': True} for name in capabilities])
    here.tell('migrate-set-parameters', **{'downtime-limit': 2000})
    here.tell('migrate', uri=PLACE)
    state = {}
    while state.get('status') not in ('completed', 'failed'):
        time.sleep(0.1)
        state = here.tell('query-migrate')
    if state['status'] == 'failed':
        sys.exit(f'the migration failed: {state}')
    while there.tell('query-status')['status'] == 'inmigrate':
        time.sleep(0.1)
    return state['ram']['transferred']


def run(folder, cxctl, guest, capabilities, machines):
    there = Machine(folder, 'there', cxctl, guest, '-S', '-incoming', PLACE)
    machines.append(there)
    here = Machine(folder, 'here', cxctl, guest)
    machines.append(here)
    here.wait_for_rounds(3)
    transferred = migrate(here, there, capabilities)
    if here.dump() != there.dump():
        sys.exit('the memory of the guest is not what it was')
    there.tell('cont')
    there.wait_for_rounds(5)
    rounds = here.rounds() + there.rounds()
    if set(rounds) != set(WHOLE):
        sys.exit(f'the guest found its memory damaged: {rounds}')
    print(f'{MEMORY_MIB << 20} bytes compared, {transferred} transferred, {len(rounds)} rounds')
    for machine in machines:
        machine.tell('quit')
        if machine.process.wait() != 0:
            sys.exit(f'QEMU ended with status {machine.process.returncode}')


def main():
    if len(sys.argv) < 3 or sys.argv[1].startswith('-'):
        sys.exit(__doc__)
    cxctl, guest, *capabilities = sys.argv[1:]
    machines = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            run(pathlib.Path(folder), cxctl, guest, capabilities, machines)
        finally:
            for machine in machines:
                machine.process.kill()


main()
