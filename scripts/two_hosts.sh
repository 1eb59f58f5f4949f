#!/usr/bin/env bash
# Trains one small model on two "hosts" and on one process, and compares every checkpoint. A host is a network namespace
# with a name of its own; the two are joined by a pair of virtual cables. Exit 77 where namespaces are not allowed.
#
#   scripts/two_hosts.sh [SAMBA]
set -euo pipefail
samba=$(realpath "${1:-build/samba}")
id=$$
one=samba_one_$id two=samba_two_$id
work=$(mktemp -d)

skip() { echo "two_hosts: $1"; exit 77; }
command -v mpirun >/dev/null || skip "mpirun is missing (libopenmpi-dev)"
command -v ip >/dev/null || skip "the command ip is missing (iproute2)"
ip netns add "$one" 2>/dev/null || skip "network namespaces are not allowed here"
cleanup() {
  ip netns del "$one" 2>/dev/null || true
  ip netns del "$two" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
ip netns add "$two"
ip link add "sa$id" netns "$one" type veth peer name "sb$id" netns "$two" 2>/dev/null ||
  skip "virtual network cables are not allowed here"
ip -n "$one" addr add 10.213.7.1/24 dev "sa$id"
ip -n "$two" addr add 10.213.7.2/24 dev "sb$id"
for name in "$one" "$two"; do ip -n "$name" link set lo up; done
ip -n "$one" link set "sa$id" up
ip -n "$two" link set "sb$id" up

# What mpirun calls in place of ssh: AGENT HOST COMMAND...
cat >"$work/agent" <<AGENT
#!/bin/sh
shift
exec ip netns exec $two unshare --uts sh -c 'hostname samba-two; exec sh -c "\$0"' "\$*"
AGENT
chmod +x "$work/agent"

for i in $(seq 1 80); do echo "the quick brown fox no. $i jumps over the lazy dog"; done >"$work/text.txt"
cat >"$work/run.json" <<CONFIG
{"seed": 5, "steps": 6,
 "model": {"vocab": 256, "d_model": 32, "layers": ["mamba3", "attention"], "n_heads": 2, "intermediate": 32, "dropout": 0.1},
 "data": {"paths": ["text.txt"]}, "batch": {"rows": 8, "length": 64}, "optimizer": {"max_norm": 1.0},
 "schedule": {"kind": "constant", "peak_lr": 0.003}, "checkpoint": {"every": 3, "digest_every": 1}}
CONFIG

"$samba" train --threads 1 --config "$work/run.json" --out "$work/alone" --progress never >/dev/null
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
ip netns exec "$one" timeout 300 mpirun --oversubscribe -n 4 -H 10.213.7.1:2,10.213.7.2:2 \
  --mca plm_rsh_agent "$work/agent" --mca btl tcp,self --mca btl_tcp_if_include 10.213.7.0/24 \
  --mca oob_tcp_if_include 10.213.7.0/24 \
  "$samba" train --threads 1 --config "$work/run.json" --out "$work/hosts" --progress never
for step in 00000003 00000006; do
  cmp "$work/alone/checkpoints/step-$step.samba" "$work/hosts/checkpoints/step-$step.samba"
done
received=$(ip netns exec "$two" cat "/sys/class/net/sb$id/statistics/rx_bytes" 2>/dev/null || echo 0)
echo "two hosts, 4 ranks: equal; the second received $received bytes"
