#!/bin/sh
# PID 1 of a lab, in namespaces of its own: holds the hosts' disks and wires while its standard input lasts. With it
# everything goes: hosts, processes, mounts, links.
# $1: the lab's folder.  $2: size of each host's disk.
set -eu
lab=$1 size=$2
read -r pid _ </proc/self/stat

for host in jump ct129 kpro6; do
  mkdir -p "$lab/disk/$host"
  mount -t tmpfs -o "size=$size,mode=755" "$host" "$lab/disk/$host"
  : >"$lab/net/$host"
  # Not `unshare --net=FILE`, which asks /proc by the number that it has in this PID namespace.
  unshare --net /bin/sh -c 'mount --bind /proc/self/ns/net "$1" && ip link set lo up' sh "$lab/net/$host"
done

# wire NAMESPACE DEVICE ADDRESS NAMESPACE DEVICE ADDRESS
wire() {
  nsenter --net="$1" ip link add "$2" type veth peer name "$5" netns "$4"
  printf 'addr add %s/30 dev %s\nlink set %s up\n' "$3" "$2" "$2" | nsenter --net="$1" ip -batch -
  printf 'addr add %s/30 dev %s\nlink set %s up\n' "$6" "$5" "$5" | nsenter --net="$4" ip -batch -
}
ip link set lo up
# Point to point, and no route but those: 198.18.0.0/15 is set aside for benchmarks (RFC 2544).
wire /proc/self/ns/net to-jump 198.18.1.1 "$lab/net/jump" to-op 198.18.1.2
wire /proc/self/ns/net to-ct129 198.18.2.1 "$lab/net/ct129" to-op 198.18.2.2
wire "$lab/net/jump" to-kpro6 198.18.3.1 "$lab/net/kpro6" to-jump 198.18.3.2

echo "ready $pid"
exec >/dev/null
cat >/dev/null
