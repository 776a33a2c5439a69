# One step of stopping a run. proc.sh and lease.sh stand before. Reads: folder step, and what the step needs:
#   look                              what is there
#   ask      token who_json grace_s   leave the note, then TERM
#   wait     token                    until nothing is left, for two seconds at most
#   kill     token with_supervisor    KILL, until nothing is left, for two seconds at most
#   prove    token end                a fresh look at processes, ports and GPUs; end: what exit.json says if nobody wrote it
# seen are processes, pid:ticks, that belonged to the run in an earlier step. family_py is the supervisor's family.py.
# Prints key=value lines. Nothing is signalled whose token is not the run's.
set -u
umask 077
LC_ALL=C
export LC_ALL
trap '' HUP PIPE
unset DFLASHCTL_MARKER

# Sets last and record: the newest attempt, empty where there is no supervisor; launch_nonce and launch_by with it.
find_attempt() {
  record='' launch_nonce='' launch_by='' launch_boot=''
  for attempt in "$folder"/attempts/[0-9][0-9][0-9][0-9]; do [ -d "$attempt" ] && record=$attempt; done
  [ -n "$record" ] || return 0
  { while IFS='=' read -r key value; do
    case $key in nonce) launch_nonce=$value ;; launcher) launch_by=$value ;; boot) launch_boot=$value ;; esac
  done; } 2>/dev/null <"$record/launch"
}

# Sets known to the processes that the supervisor wrote down, and pipe.
find_known() {
  run_known "$folder"
  known="$seen $run_known" pipe=$run_pipe job=${run_known%% *}
}

# Sets members. Without a token the launch's nonce is all there is to go by.
find_members() {
  members='' due=''
  case $presence in "another boot" | "another namespace" | "another run" | unreadable) return 0 ;; esac
  find_known
  # shellcheck disable=SC2086
  if [ -n "$token" ]; then
    "${1:-family_find}" ${2:-} "$token_marker" "$token_ticks" "$token_uid" $$ "$token_pid" "$pipe" "$token_pid:$token_ticks" $known
  elif [ -n "$launch_nonce" ] && [ "$launch_boot" = "$here_boot" ]; then
    "${1:-family_find}" ${2:-} "$launch_nonce" "${launch_by#*:}" "$here_uid" $$ 0 "$pipe" $known
  fi
}

see() {
  presence=none
  [ -z "$token" ] || token_presence_in "$folder" "$token"
  find_attempt
}

tell_state() {
  job='' job_lives=0 end=''
  [ -n "$record" ] && p_first "$record/job" && job=$p_content && proc_is "$job" && job_lives=1
  p_first "$folder/exit.json" && end=$p_content
  printf 'presence=%s\nmembers=%s\njob=%s\njob_lives=%s\nexit=%s\n' "$presence" "$members" "$job" "$job_lives" "$end"
}

look() {
  [ -d "$folder" ] || { printf 'folder=none\n' && return 0; }
  token=
  p_read "$folder/token.json" && token=$p_content
  see
  find_members
  tell_state
  starting=0
  [ -n "$launch_by" ] && [ "$launch_boot" = "$here_boot" ] && proc_is "$launch_by" && starting=1
  printf 'folder=there\ntoken=%s\nattempt=%s\nstarting=%s\n' "$token" "${record##*/}" "$starting"
  # A zombie is still the same one.
  if [ "$presence" = gone ] && proc_stat "$token_pid" && proc_uid "$token_pid" && [ "$stat_ticks $stat_uid" != "$token_ticks $token_uid" ]; then
    printf 'now_ticks=%s\nnow_uid=%s\n' "$stat_ticks" "$stat_uid"
  fi
}

leave_note() {
  note=$(printf '{"who":%s,"when_s":%s,"grace_s":%s}' "$who_json" "$(date +%s)" "$grace_s")
  for place in "$record" "$folder"; do
    [ -n "$place" ] || continue
    printf '%s\n' "$note" >"$place/stop.new" 2>/dev/null && mv -f "$place/stop.new" "$place/stop.requested" || printf 'note=not written\n'
  done
}

ask() {
  see
  # While they live: with them goes what tells their session from a stranger's.
  find_members
  case $presence in "another boot" | "another namespace" | "another run" | unreadable) tell_state && return 0 ;; esac
  leave_note
  # shellcheck disable=SC2086
  if [ "$presence" = alive ]; then
    proc_send TERM "$token_pid:$token_ticks"
  elif [ -n "$job" ] && proc_is "$job"; then
    proc_send TERM "$job"
  else
    proc_send TERM $members
  fi
  tell_state
}

await() {
  n=0
  while :; do
    see
    members=
    if [ -z "$token" ]; then
      [ ! -f "$folder/token.json" ] || break
    elif [ "$presence" != alive ]; then
      find_members
      [ -n "$members" ] || break
    fi
    n=$((n + 1))
    [ "$n" -lt 14 ] || break
    proc_nap 0.14
  done
  tell_state
}

end_them() {
  spared=0
  see
  # The supervisor and its helpers come last: they write down how it ended.
  [ -z "$record" ] || [ "$with_supervisor" = 1 ] || [ -z "$token" ] || spared=$token_pid
  find_members
  p_spared=$spared
  find_due
  killed=$due
  for n in 1 2 3 4 5 6 7 8 9 10; do
    see
    find_known
    # Its group at once, for those that are just being forked.
    [ "$presence" != alive ] && [ "$presence" != gone ] || [ -z "$job" ] || ! proc_is "$job" || kill -s KILL -- "-${job%%:*}" 2>/dev/null
    find_members family_kill "$spared"
    [ -n "$due" ] && proc_clock || break
    [ "$n" != 1 ] || began_cs=$now_cs
    [ $((now_cs - began_cs)) -lt 200 ] || break
    proc_nap 0.1
  done
  printf 'killed=%s\ndue=%s\n' "$killed" "$due"
  tell_state
}

prove() {
  see
  find_members
  port='' leases=''
  # shellcheck source=/dev/null
  if [ -n "$record" ] && [ -r "$folder/supervise.conf" ]; then . "$folder/supervise.conf"; fi
  if [ -n "$port" ]; then
    proc_ports
    case $ports in *" $(printf %04X "$port"):0A "*) printf 'port=%s\n' "$port" ;; esac
  fi
  for lease in $leases; do
    case $lease in gpu-*) gpu=${lease#gpu-} && break ;; esac
  done
  if [ -n "${gpu:-}" ] && command -v nvidia-smi >/dev/null; then
    ask_gpus --query-gpu=uuid,memory.used memory
    ask_gpus --query-compute-apps=gpu_uuid,pid apps
  fi
  printf 'leases=%s\n' "$leases"
  # A supervisor that was killed could not do it.
  if [ -n "$record" ] && [ -z "$members" ] && [ "$presence" = gone ]; then rm -f "$folder/secrets.env"; fi
  if [ -n "$record" ] && [ -z "$members" ] && [ ! -f "$folder/exit.json" ] && [ -n "$ended" ] && [ "$presence" = gone ]; then
    printf '%s\n' "$ended" >"$folder/exit.new" && mv -f "$folder/exit.new" "$folder/exit.json"
  fi
  tell_state
}

# A driver that hangs must not hang this.
ask_gpus() {
  limit=$(command -v timeout) || limit=
  ${limit:+timeout 10} nvidia-smi "$1" --format=csv,noheader,nounits 2>/dev/null |
    while IFS=', ' read -r uuid value rest; do printf '%s=%s %s\n' "$2" "$uuid" "$value"; done
}

proc_here || exit 32
case $step in
  look) look ;;
  ask) ask ;;
  wait) await ;;
  kill) end_them ;;
  prove) prove ;;
esac
