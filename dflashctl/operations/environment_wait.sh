# How the making of an environment does; waits a while for its end. proc.sh and run_seen.sh stand before this.
# Reads folder (of the job), target and wait_s. Prints env=complete|building|failed|absent, attempt=..., and last=..., or
# for a failure an empty line and the end of the log.
set -u
LC_ALL=C
log_end() {
  [ -f "$folder/log" ] && tail -n "$1" "$folder/log" | cut -c 1-500
}

# Sets nonce and is_starting: whether whoever starts the newest attempt is at work on that.
see_start() {
  nonce='' by='' boot='' is_starting=0 newest=
  for attempt in "$folder"/attempts/[0-9][0-9][0-9][0-9]; do [ -d "$attempt" ] && newest=$attempt; done
  { while IFS='=' read -r key value; do
    case $key in nonce) nonce=$value ;; launcher) by=$value ;; boot) boot=$value ;; esac
  done; } 2>/dev/null <"$newest/launch"
  proc_here && [ "$boot" = "$here_boot" ] && proc_is "$by" && is_starting=1
}

# Sets state.
see_making() {
  see_start
  see_run "$folder"
  # Looked at after the process: what it writes at its end is then not missed.
  if [ -f "$target/env.json" ]; then
    state=complete
  elif [ ! -d "$folder" ]; then
    state=absent
  elif [ "$is_starting" = 1 ]; then
    state=building
  elif [ "$is_over" = 1 ] || [ -z "$token" ]; then
    # Without a token and without anybody who would write it, the start was cut off.
    state=failed
  else
    state=building
  fi
}

see_making
# Its folder may just have been made.
[ "$state" != failed ] || [ -n "$nonce" ] || { proc_nap 0.5 && see_making; }
waited=0
while [ "$state" = building ] && [ "$waited" -lt $((wait_s * 5)) ]; do
  sleep 0.2 2>/dev/null || { sleep 1; waited=$((waited + 4)); }
  waited=$((waited + 1))
  see_making
done
printf 'env=%s\nattempt=%s\n' "$state" "${newest##*/}"
case $state in
  building) printf 'last=%s\n' "$(log_end 1)" ;;
  failed)
    echo
    log_end 30
    ;;
esac
