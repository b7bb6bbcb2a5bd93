#!/usr/bin/env bash
# SoupBinTCP sessions with strangers' clients and servers: the npm package soupbintcp and the PyPI
# package nasdaq-protocols.
set -euo pipefail

usage() {
    cat <<'USAGE'
sessions.sh: order entry sessions with libraries that others wrote, in both directions.

  scripts/net/sessions.sh

The npm package soupbintcp 1.0.2 and the PyPI package nasdaq-protocols 1.3.0 each log in to our
exchange over the kernel's TCP, with a wrong password (refused) and with the right one, enter an
order, read its answers, come back and get the same answers again, and hear the end of the session.
Then each serves our trader on the software ConnectX: login, request, counted answer, heartbeats,
end of session. Needs root and both registries: not in CI. Exit status: 0 passed, 1 something is
wrong, 77 skipped.
USAGE
}

# shellcheck source=scripts/net/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

case ${1-} in
'') ;;
-h | --help) usage; exit 0 ;;
*) usage >&2; exit 2 ;;
esac

need_net node npm python3
need_tap
start_work
need_rust
cd "$net_root"
tick2trade=${FERROCX_TICK2TRADE:-}
if [ -z "$tick2trade" ]; then
    cargo build -q --release --locked -p ferrocx-tick2trade --bin tick2trade
    tick2trade=${CARGO_TARGET_DIR:-$net_root/target}/release/tick2trade
fi
python3 -m venv "$work/venv" 2>/dev/null || skip "python3 makes no venv (python3-venv)"
"$work/venv/bin/pip" install -q nasdaq-protocols==1.3.0 2>/dev/null ||
    skip "nasdaq-protocols 1.3.0 cannot be had from PyPI"
npm install --silent --no-audit --no-fund --prefix "$work" soupbintcp@1.0.2 >/dev/null 2>&1 ||
    skip "soupbintcp 1.0.2 cannot be had from npm"

# An order of OUCH 5.0: number 1 buys 100 NVDA at 150.0000, day, with an empty appendage; and the
# question for the next number, with the answer that it is 1.
symbol=4e56444120202020 price=000000000016e360 name=$(printf '20%.0s' {1..14})
order=4f000000014200000064${symbol}${price}3059504e4e${name}0000
question=51
answer=51000000000000000000000001

cat >"$work/client.py" <<'PYTHON'
import asyncio
import sys

from nasdaq_protocols import soup

order = bytes.fromhex(sys.argv[1])


async def session(password, sequence):
    """A session and its messages; None behind the last."""
    got = asyncio.Queue()

    async def on_message(message):
        if isinstance(message, soup.SequencedData):
            got.put_nowait(message.data)
        elif isinstance(message, soup.EndOfSession):
            got.put_nowait(None)

    async def on_close():
        got.put_nowait(None)

    client = await soup.connect_async(
        ("198.18.0.1", 9000), "ferro", password, sequence=sequence, on_msg_coro=on_message,
        on_close_coro=on_close, client_heartbeat_interval=1, server_heartbeat_interval=1,
    )
    return client, got


async def main():
    try:
        await session("wrong", 1)
        sys.exit("a wrong password was taken")
    except ConnectionRefusedError as error:
        print(f"refused: {error}")
    client, got = await session("", 1)
    first = [await asyncio.wait_for(got.get(), 20)]
    client.send_unseq_data(order)
    while len(first) < 2 or first[-1][:1] != b"A":
        first.append(await asyncio.wait_for(got.get(), 20))
    await asyncio.sleep(2.5)
    await client.close()
    client, got = await session("", 1)
    again = [await asyncio.wait_for(got.get(), 20) for _ in first]
    if again != first:
        sys.exit(f"{first} at first, {again} again")
    while await asyncio.wait_for(got.get(), 60) is not None:
        pass
    print(f"{len(first)} counted messages, the same again, end of session")


asyncio.run(main())
PYTHON
cat >"$work/server.py" <<'PYTHON'
import asyncio
import sys

from nasdaq_protocols import soup

question, answer = (bytes.fromhex(text) for text in sys.argv[1:])
done = asyncio.Event()


class Session(soup.SoupServerSession, session_type="server"):
    heard = 0

    async def on_login(self, message):
        print(f"login of {message.user}, from {message.sequence}")
        return soup.LoginAccepted("20261122", 1)

    async def on_unsequenced(self, message):
        if message.data != question:
            sys.exit(f"{message.data} came")
        self.send_seq_msg(answer)
        asyncio.get_running_loop().call_later(3, self.finish)

    def finish(self):
        self.end_session()
        done.set()


async def main():
    make = lambda: Session(client_heartbeat_interval=1, server_heartbeat_interval=1)
    await asyncio.get_running_loop().create_server(make, "198.18.0.1", 9000)
    print("listening", flush=True)
    await asyncio.wait_for(done.wait(), 60)
    await asyncio.sleep(1)


asyncio.run(main())
PYTHON
cat >"$work/client.js" <<'NODE'
const { Client } = require('soupbintcp');
const order = Buffer.from(process.argv[2], 'hex');
const die = (why) => { console.error(why); process.exit(1); };
setTimeout(() => die('nothing more came'), 60000).unref();

function session(password, events) {
  const client = new Client({ host: '198.18.0.1', port: 9000 }, () => client.login({
    username: 'ferro', password, requestedSession: '', requestedSequenceNumber: 1,
  }));
  for (const [name, on] of Object.entries(events)) client.on(name, (what) => on(client, what));
  client.on('error', () => {});
}

const first = [], again = [];
session('wrong', {
  accept: () => die('a wrong password was taken'),
  reject: (client, { rejectReasonCode }) => {
    console.log(`refused: ${rejectReasonCode}`);
    client.end();
    setTimeout(trade, 500);
  },
});

function trade() {
  session('', {
    message: (client, message) => {
      first.push(message.toString('hex'));
      if (first.length === 1) client.send(order);
      if (message[0] === 0x41) setTimeout(() => { client.end(); setTimeout(comeBack, 500); }, 2500);
    },
  });
}

function comeBack() {
  session('', {
    message: (client, message) => again.push(message.toString('hex')),
    ending: () => {
      const same = first.every((message, at) => message === again[at]);
      if (first.length < 2 || !same) die(`${first} at first, ${again} again`);
      console.log(`${first.length} counted messages, the same again, end of session`);
      process.exit(0);
    },
  });
}
NODE
cat >"$work/server.js" <<'NODE'
const { Server } = require('soupbintcp');
const [question, answer] = process.argv.slice(2).map((text) => Buffer.from(text, 'hex'));
const die = (why) => { console.error(why); process.exit(1); };
setTimeout(() => die('nobody came'), 60000).unref();
const server = new Server({ host: '198.18.0.1', port: 9000 }, () => console.log('listening'));
server.on('session', (session) => {
  session.on('error', () => {});
  session.on('login', ({ username, requestedSequenceNumber }) => {
    console.log(`login of ${username.trim()}, from ${requestedSequenceNumber}`);
    session.accept({ session: '20261122', sequenceNumber: 1 });
  });
  session.on('message', (message) => {
    if (!message.equals(question)) die(`${message.toString('hex')} came`);
    session.send(answer);
    setTimeout(() => session.ending(() => setTimeout(() => process.exit(0), 1000)), 3000);
  });
});
NODE

python=("$work/venv/bin/python")
node=(env NODE_PATH="$work/node_modules" node)
echo "== result"
for stranger in nasdaq-protocols soupbintcp; do
    case $stranger in
    soupbintcp) client=("${node[@]}" "$work/client.js") server=("${node[@]}" "$work/server.js") ;;
    *) client=("${python[@]}" "$work/client.py") server=("${python[@]}" "$work/server.py") ;;
    esac
    echo "---- $stranger logs in to our exchange"
    theirs=''
    namespace theirs "c${stranger:0:1}"
    ip -n "$theirs" tuntap add fx0 mode tap
    ip -n "$theirs" addr add 198.18.0.2/24 dev fx0
    ip -n "$theirs" link set fx0 up
    ip netns exec "$theirs" "$tick2trade" exchange --tap fx0 --ticks 12 --interval-us 1000000 \
        >"$work/exchange.out" &
    exchange=$!
    until_true 20 grep -q waiting "$work/exchange.out" || die "our exchange did not start"
    ip netns exec "$theirs" "${client[@]}" "$order" || die "$stranger's client failed"
    wait $exchange || die "our exchange ended badly"
    cat "$work/exchange.out"

    echo "---- our trader logs in to $stranger"
    namespace theirs "s${stranger:0:1}"
    ip -n "$theirs" tuntap add fx1 mode tap
    ip -n "$theirs" addr add 198.18.0.1/24 dev fx1
    ip -n "$theirs" link set fx1 up
    ip netns exec "$theirs" "${server[@]}" "$question" "$answer" >"$work/server.out" 2>&1 &
    server_pid=$!
    # The address can be bound to at once; the interface has its carrier when the trader comes.
    until_true 20 grep -q listening "$work/server.out" || die "$stranger's server did not start"
    ip netns exec "$theirs" "$tick2trade" trade --device model:tap=fx1 >"$work/trade.out" 2>&1 ||
        die "our trader failed: $(cat "$work/trade.out")"
    wait $server_pid || die "$stranger's server failed: $(cat "$work/server.out")"
    cat "$work/server.out" "$work/trade.out"
    grep -q 'open, the next order is 1' "$work/trade.out" || die "order entry did not open"
    grep -q 'the session is over' "$work/trade.out" || die "the end of the session was not heard"
done
