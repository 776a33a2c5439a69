# What a host is like, for `hosts check`: functions that print key=value lines. They change nothing.
# doctor_tools reads probe_tools; doctor_disks reads workdir, as in hosts.yaml.
LC_ALL=C
export LC_ALL

say() { printf '%s=%s\n' "$1" "$(printf %s "$2" | tr '\n\t' '  ')"; }

# $1: seconds, then a command: killed when they are over, where there is something that can.
bounded() {
  if command -v timeout >/dev/null 2>&1; then timeout -s KILL "$@"; else
    shift
    "$@"
  fi
}

doctor_identity() {
  say uid "$(id -u)"
  say user "$(id -un 2>/dev/null || id -u)"
  say machine "$(uname -n)"
  say kernel "$(uname -r)"
  say umask "$(umask)"
  entry=$(getent passwd "$(id -u)" 2>/dev/null || grep "^[^:]*:[^:]*:$(id -u):" /etc/passwd 2>/dev/null | head -n 1)
  entry=${entry##*:}
  say login_shell "${entry:-${SHELL-}}"
}

doctor_tools() {
  say sh "$(readlink /bin/sh || echo /bin/sh)"
  say sh_program "$(readlink "/proc/$$/exe")"
  say sh_bash "${BASH_VERSION-}"
  case "$(type printf 2>&1)" in *builtin*) say printf_builtin 1 ;; *) say printf_builtin 0 ;; esac
  missing=
  for tool in $probe_tools; do command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"; done
  say tools_missing "$missing"
  say tools_work "$(printf abc | tail -c +2 2>&1)$(printf abc | head -c 1 2>&1)$(printf YQ== | base64 -d 2>&1)"
}

doctor_processes() {
  say pid_namespace "$(readlink /proc/self/ns/pid)"
  while read -r name rest; do [ "$name" = NSpid: ] && say nspid "$rest"; done </proc/self/status
  say init "$(cat /proc/1/comm 2>/dev/null)"
  [ -e /proc/1/stat ] && say init_visible 1
  while read -r device where type options rest; do
    [ "$where $type" = "/proc proc" ] && say proc_options "$options"
  done </proc/self/mounts
  container=$(cat /run/systemd/container 2>/dev/null)
  [ -z "$container" ] && [ -e /.dockerenv ] && container=docker
  [ -z "$container" ] && [ -e /run/.containerenv ] && container=podman
  [ -z "$container" ] && container=$(tr '\0' '\n' 2>/dev/null </proc/1/environ | sed -n 's/^container=//p')
  say container "$container"
}

doctor_sessions() {
  group='' unit=''
  while IFS= read -r line; do
    say cgroup "$line"
    case "$line" in 0::* | *:name=systemd:*) unit=${line##*/} ;; esac
    case "$line" in 0::*) group=${line#0::} ;; esac
  done </proc/self/cgroup
  if [ ! -d /run/systemd/system ]; then say systemd 0; else
    say systemd 1
    [ -e "/var/lib/systemd/linger/$(id -un 2>/dev/null)" ] && say linger 1
    told=$(bounded 5 loginctl show-session -p KillUserProcesses -p KillOnlyUsers -p KillExcludeUsers 2>/dev/null) &&
      printf '%s\n' "$told" | sed -n 's/^Kill/logind_Kill/p'
    case "$unit" in *ssh*@*.service) say sshd_unit "$(bounded 5 systemctl show -p KillMode "$unit" 2>/dev/null)" ;; esac
  fi
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then say cgroup_v2 1; else say cgroup_v2 0; fi
  [ -n "$group" ] || return 0
  folder=/sys/fs/cgroup$group
  [ -w "$folder" ] && [ -w "$folder/cgroup.procs" ] && say cgroup_writable 1
  [ -e "$folder/cgroup.kill" ] && say cgroup_kill 1
  return 0
}

# $1: prefix of the keys, $2: a folder, there or not yet. df of a folder that is there.
doctor_folder() {
  above=$2
  [ -d "$above" ] && say "$1_exists" 1
  while [ ! -e "$above" ] && [ ! -L "$above" ] && [ -n "${above%/*}" ]; do above=${above%/*}; done
  [ -e "$above" ] || [ -L "$above" ] || above=/
  say "$1_above" "$above"
  [ -d "$above" ] && [ -w "$above" ] && [ -x "$above" ] && say "$1_writable" 1
  say "$1_blocks" "$(df -Pk "$above" 2>/dev/null | tail -n 1)"
  say "$1_files" "$(df -Pi "$above" 2>/dev/null | tail -n 1)"
  say "$1_type" "$(stat -f -c %T "$above" 2>/dev/null)"
}

doctor_disks() {
  doctor_folder temporary "${TMPDIR:-/tmp}"
  say temporary "${TMPDIR:-/tmp}"
  case "$workdir" in
    "~") workdir=$HOME ;;
    "~/"*) workdir=$HOME/${workdir#"~/"} ;;
  esac
  say workdir "$workdir"
  doctor_folder workdir "$workdir"
}
