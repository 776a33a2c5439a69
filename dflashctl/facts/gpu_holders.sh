# The GPUs of this host and who holds them, as far as that can be seen from here. Signals and changes nothing.
# Uses say and bounded of doctor.sh, and proc.sh and lease.sh of the supervisor. Reads workdir, as in hosts.yaml.
# Prints nvidia_smi=, gpu=, gpu_problem=, gpu_device=, gpu_minor=, gpu_app=, gpu_open=, process= and lease= lines.
# Fails if the driver gave no answer: it is not asked again then.
gpu_rows() {
  columns=index,uuid,name,memory.total,memory.used,driver_version
  told=$($ask --query-gpu=$columns,compute_cap 2>&1)
  code=$?
  case "$code:$told" in
    # Old ones do not know it.
    *:*compute_cap*) told=$($ask --query-gpu=$columns 2>&1) && code=0 || code=$? ;;
  esac
  if [ "$code" != 0 ]; then
    say gpu_problem "exit code $code: $told"
    return 1
  fi
  printf '%s\n' "$told" | sed 's/^/gpu=/'
}

# Sets opens to PID NUMBER of each /dev/nvidiaNUMBER that a process has open. Only root sees those of other users.
gpu_opens() {
  opens=$(
    ls -l /proc/[0-9]*/fd 2>/dev/null | grep -e '^/proc/' -e ' -> /dev/nvidia[0-9]' | while IFS= read -r line; do
      case "$line" in
        /proc/*/fd:) pid=${line#/proc/} pid=${pid%/fd:} ;;
        *) printf '%s %s\n' "$pid" "${line##*/dev/nvidia}" ;;
      esac
    done | sort -u
  )
}

gpu_process() {
  [ -d "/proc/$1" ] || return 0
  owner=$(stat -c '%u %U' "/proc/$1" 2>/dev/null || echo '? ?')
  marker=$(tr '\0' '\n' 2>/dev/null <"/proc/$1/environ" | sed -n 's/^DFLASHCTL_MARKER=//p' | head -n 1 | tr ' ' '_')
  say process "$1 $owner ${marker:--} $(cat "/proc/$1/comm" 2>/dev/null)"
}

gpu_leases() {
  proc_here || return 0
  for path in "$workdir"/leases/gpu-*; do
    [ -d "$path" ] || continue
    life=gone
    if lease_read "$path"; then lease_is_live && life=live; else lease_nonce='' lease_folder=''; fi
    say lease "${path##*/gpu-} $life ${lease_nonce:--} $lease_folder"
  done
}

tell_gpu_holders() {
  case "$workdir" in
    "~") workdir=$HOME ;;
    "~/"*) workdir=$HOME/${workdir#"~/"} ;;
  esac
  apps=
  if command -v nvidia-smi >/dev/null 2>&1; then
    say nvidia_smi "$(command -v nvidia-smi)"
    ask="bounded 30 nvidia-smi --format=csv,noheader,nounits"
    gpu_rows && apps=$($ask --query-compute-apps=gpu_uuid,pid,used_gpu_memory 2>/dev/null | grep '^GPU-')
    [ -z "$apps" ] || printf '%s\n' "$apps" | sed 's/^/gpu_app=/'
  fi
  for device in /dev/nvidia[0-9]*; do [ -e "$device" ] && say gpu_device "${device#/dev/nvidia}"; done
  for file in /proc/driver/nvidia/gpus/*/information; do
    [ -r "$file" ] && say gpu_minor "$(sed -n 's/^GPU UUID:[[:space:]]*//p; s/^Device Minor:[[:space:]]*//p' "$file")"
  done
  gpu_opens
  [ -z "$opens" ] || printf '%s\n' "$opens" | sed 's/^/gpu_open=/'
  { printf '%s\n' "$opens" | cut -d ' ' -f 1; printf '%s\n' "$apps" | cut -d , -f 2 | tr -d ' '; } | sort -u |
    while IFS= read -r pid; do
      case "$pid" in "" | *[!0-9]*) continue ;; esac
      gpu_process "$pid"
    done
  gpu_leases
}
