#!/bin/sh
# PID 1 of one host: makes its root from this machine's, below what the host has written so far, starts sshd, and then
# waits for children that nobody else waits for.
# $1: host.  $2: the lab's folder.  $3: "new" or "same": identity of this boot.  Further: folders to show as they are.
set -eu
host=$1 lab=$2 boot=$3
shift 3
read -r pid _ </proc/self/stat
disk=$lab/disk/$host
root=$disk/root
hostname "$host"

mkdir -p "$disk/upper" "$disk/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$disk/upper,workdir=$disk/work" "$root"
# Where people and programs of this machine keep things: the host has its own.
for folder in tmp var/tmp root home; do
  mkdir -p "$disk/own/$folder" "$root/$folder"
  mount --bind "$disk/own/$folder" "$root/$folder"
done
chmod 1777 "$root/tmp" "$root/var/tmp"
chmod 711 "$root/root"
mkdir -p "$root/run"
mount -t tmpfs -o mode=755 run "$root/run"
for shown in "$@"; do
  # There already, as more than the empty folder that an earlier boot has made for it.
  [ -n "$(ls -A "$root$shown" 2>/dev/null)" ] && continue
  mkdir -p "$root$shown"
  mount --bind -o ro "$shown" "$root$shown"
done
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys" 2>/dev/null || :
mount -t tmpfs -o mode=755 dev "$root/dev"
for device in null zero full random urandom tty; do
  [ -e "/dev/$device" ] || continue
  : >"$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"

[ "$boot" = same ] || cat /proc/sys/kernel/random/uuid >"$disk/boot_id"
mount --bind -o ro "$disk/boot_id" "$root/proc/sys/kernel/random/boot_id"

if ! [ -e "$disk/installed" ]; then
  echo "$host" >"$root/etc/hostname"
  printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$host" >"$root/etc/hosts"
  rm -f "$root/etc/resolv.conf"
  : >"$root/etc/resolv.conf"
  sed -i -e '/^train:/d' -e '/^sshd:/d' -e 's|^root:.*|root:x:0:0:root:/root:/bin/bash|' "$root/etc/passwd"
  echo 'sshd:x:105:65534::/run/sshd:/usr/sbin/nologin' >>"$root/etc/passwd"
  echo 'train:x:1500:1500::/home/train:/bin/bash' >>"$root/etc/passwd"
  echo 'train:x:1500:' >>"$root/etc/group"
  sed -i -e '/^train:/d' -e '/^root:/d' "$root/etc/shadow"
  printf 'root:*:19000::::::\ntrain:*:19000::::::\n' >>"$root/etc/shadow"
  install -d -m 755 "$root/etc/ssh"
  install -m 600 "$lab/keys/$host" "$root/etc/ssh/lab_host_key"
  install -m 644 "$lab/sshd_config" "$root/etc/ssh/lab_sshd_config"
  install -d -m 700 "$root/root/.ssh" "$root/home/train" "$root/home/train/.ssh"
  install -m 600 "$lab/op/id_ed25519.pub" "$root/root/.ssh/authorized_keys"
  install -m 600 "$lab/op/id_ed25519.pub" "$root/home/train/.ssh/authorized_keys"
  chown -R 1500:1500 "$root/home/train"
  : >"$disk/installed"
fi

cd "$root"
mkdir -p .old
pivot_root . .old
cd /
umount -l /.old
rmdir /.old

mkdir -p /run/sshd
/usr/sbin/sshd -f /etc/ssh/lab_sshd_config -E /var/log/lab-sshd.log || {
  cat /var/log/lab-sshd.log >&2
  exit 1
}
tries=0
until [ -s /run/sshd.pid ]; do
  tries=$((tries + 1))
  [ "$tries" -lt 500 ] || exit 1
  sleep 0.02
done
# What a shell waits for, so that it can wait for others: it reaps every child that ends meanwhile.
sleep 1000000 &
echo "ready $pid $!"
exec >/dev/null 2>&1
while :; do
  wait || :
  sleep 1000000 &
done
