#!/usr/bin/env python3
"""What blktests calls to have a target made and taken away: ours, by its socket.

usage: blktests-control.py config --show-...
       blktests-control.py setup --subsysnqn NQN --subsys-uuid UUID --hostnqn NQN [--hostkey KEY]
       blktests-control.py cleanup --subsysnqn NQN

Between cleanup and setup nobody listens on the port, as with a target of the kernel's. Environment:
BLKTESTS_RPC is the command of nvmf-target's rpc, BLKTESTS_TRADDR its address, BLKTESTS_HOST_TRADDR
the host's, BLKTESTS_FILE the file that the namespace is in, BLKTESTS_SIZE its size.
"""
import json
import os
import shlex
import subprocess
import sys

PORT = 4420
HOSTID = '0f01fb42-9f7f-4856-b0b3-51e60b8de349'
CONFIG = {
    'blkdev-type': 'device',
    'trtype': 'rdma',
    'hostid': HOSTID,
    'hostnqn': f'nqn.2014-08.org.nvmexpress:uuid:{HOSTID}',
    'host-traddr': os.environ.get('BLKTESTS_HOST_TRADDR', ''),
    'traddr': os.environ.get('BLKTESTS_TRADDR', ''),
    'trsvid': str(PORT),
    'subsys-uuid': '91fdba0d-f87b-4c25-b80f-db7be1418b9e',
    'subsysnqn': 'nqn.2026-11.org.ferrocx:blktests',
}


def rpc(method, params):
    """Asks the target; whether it did so."""
    command = shlex.split(os.environ['BLKTESTS_RPC'])
    return subprocess.run([*command, method, json.dumps(params)], check=False).returncode == 0


def options(words):
    """The values of `--name value` pairs, and of those that both manual and code have names for."""
    found = dict(zip((word.lstrip('-') for word in words[::2]), words[1::2], strict=False))
    found.setdefault('ctrkey', found.get('ctrlkey'))
    return found


def setup(given):
    """Offers a subsystem with a namespace to the host."""
    subsystem = {
        'nqn': given['subsysnqn'],
        'hosts': [given['hostnqn']],
        'namespace': [{
            'nsid': 1, 'backend': 'file', 'path': os.environ['BLKTESTS_FILE'],
            'size': os.environ['BLKTESTS_SIZE'], 'uuid': given['subsys-uuid'],
        }],
    }
    if given.get('hostkey'):
        key = {'host': given['hostnqn'], 'secret': given['hostkey']}
        if given['ctrkey']:
            key['controller_secret'] = given['ctrkey']
        subsystem['key'] = [key]
    return rpc('subsystem.add', subsystem) and rpc('port.add', {'port': PORT})


def cleanup(given):
    """Takes it away."""
    gone = rpc('port.remove', {'port': PORT})
    return rpc('subsystem.remove', {'nqn': given['subsysnqn']}) and gone


def main(words):
    """Does what is asked for."""
    if not words or words[0] in ('-h', '--help'):
        print(__doc__)
        return bool(words)
    verb, rest = words[0], words[1:]
    if verb == 'config':
        print(CONFIG[rest[0].removeprefix('--show-')])
        return True
    given = options(rest)
    return {'setup': setup, 'cleanup': cleanup}[verb](given)


if __name__ == '__main__':
    sys.exit(0 if main(sys.argv[1:]) else 1)
