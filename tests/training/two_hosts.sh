#!/bin/sh
# Two hosts in one: two network namespaces joined by a virtual cable. Usage: unshare -rn sh two_hosts.sh COMMAND ...
# COMMAND runs on both, with NODE_RANK 0 and 1; the first has the address 10.77.0.1.
set -eu
ip link set lo up
ip link add left type veth peer name right
unshare -n sleep 600 &
other=$!
trap 'kill $other' EXIT
while [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
ip link set right netns $other
ip address add 10.77.0.1/24 dev left
ip link set left up
nsenter -t $other -n sh -c 'ip link set lo up; ip address add 10.77.0.2/24 dev right; ip link set right up'
nsenter -t $other -n env NODE_RANK=1 GLOO_SOCKET_IFNAME=right "$@" &
second=$!
NODE_RANK=0 GLOO_SOCKET_IFNAME=left "$@"
wait $second
