# about: TCP between two ports of mlx5e over a cable that loses, repeats and damages frames
# machine: bad-cables
# timeout: 600
# shellcheck shell=bash source=scripts/lab/netns.sh source-path=SCRIPTDIR
source /host/lab/netns.sh

readonly RECEIVE='
import socket, sys
listener = socket.create_server(("", 7000))
stream, _ = listener.accept()
with open("/run/received", "wb") as file:
    while data := stream.recv(65536):
        file.write(data)
'
readonly SEND='
import socket, sys
with socket.create_connection((sys.argv[1], 7000)) as stream, open("/run/sent", "rb") as file:
    stream.sendfile(file)
'

# A file sent over TCP arrives as it was.
transfer() {
    local from=$1 to=$2 server
    within "$to" timeout 90 python3 -c "$RECEIVE" &
    server=$!
    until_true 20 within "$to" sh -c 'ss -ltn | grep -q :7000' || return
    within "$from" timeout 90 python3 -c "$SEND" "10.0.0.$to" || return
    wait "$server" || return
    cmp /run/sent /run/received
}

load_driver 2
split_ports
must dd if=/dev/urandom of=/run/sent bs=1M count=4 status=none
check transfer 1 2
check transfer 2 1
for port in 1 2; do
    errors=$(counter "$port" rx_crc_errors_phy)
    step "port $port dropped ${errors:-no} frames with a wrong check sequence"
    check test "${errors:-0}" -gt 0
done
within 1 ping -q -i 0.01 -c 200 -W 1 10.0.0.2
check_dmesg
verdict
