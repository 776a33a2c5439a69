# The GPUs of a host and which living run has leased each. proc.sh, lease.sh and run_seen.sh stand before this.
# Reads workdir (absolute). Prints gpu=, gpu_problem= and lease= lines.
tell_gpus() {
  if command -v nvidia-smi >/dev/null 2>&1; then
    if told=$(nvidia-smi --query-gpu=index,uuid,name,memory.used,memory.total --format=csv,noheader,nounits 2>&1); then
      printf '%s\n' "$told" | while IFS= read -r line; do printf 'gpu=%s\n' "$line"; done
    else
      printf 'gpu_problem=%s\n' "$(printf '%s' "$told" | tr '\n' ' ')"
    fi
  fi
  proc_here || return 0
  for lease in "$workdir"/leases/gpu-*; do
    # That of a dead run is taken over by the start itself.
    lease_read "$lease" && lease_is_live && printf 'lease=%s %s\n' "${lease##*/gpu-}" "${lease_folder##*/}"
  done
  return 0
}
