# Starts a run's supervisor, once for a nonce however often this is sent: what is there already is told or waited for.
# proc.sh and lease.sh stand before. Reads: folder nonce resume (0 or 1) supervisor workdir sh conf gpus needs_port
# settle_cs num_files file_N_name file_N_text. Prints key=value lines, then the end of the log; the exit codes are launch.py's.
set -u
umask 077
LC_ALL=C
export LC_ALL
# Whoever asked may be gone before the end. What was begun is finished, and told only then.
trap '' HUP PIPE

told='' tail='' record='' is_ours=0 is_made=0 taken=''

tell() {
  told="$told$1=$2
"
}

finish() {
  printf '%s\n' "$told"
  [ -z "$tail" ] || tail -n 30 "$tail" 2>/dev/null
  exit "$1"
}

# Leaves nothing behind of a start that did not come to anything.
undo() {
  # shellcheck disable=SC2086
  [ -z "$taken" ] || lease_give "$nonce" $taken
  [ "$is_ours" = 1 ] && [ ! -d "$record/supervisor" ] || return 0
  if [ "$is_made" = 1 ]; then rm -rf "$folder"; else rm -rf "$record"; fi
}

# cannot_write PATH: by what the system says when a file is written beside it.
cannot_write() {
  place=${1%/*}
  while [ ! -d "$place" ] && [ -n "$place" ]; do place=${place%/*}; done
  probe=$place/.probe.$nonce
  why=$({ dd if=/dev/zero "of=$probe" bs=4096 count=4 && mkdir "$1.probe.$nonce"; } 2>&1)
  rm -f "$probe"
  rmdir "$1.probe.$nonce" 2>/dev/null
  for known in "No space left on device" "Read-only file system" "Permission denied" "Disk quota exceeded" "Not a directory"; do
    case $why in *"$known"*) tell why "$known" && break ;; esac
  done
  tell path "$1"
  undo
  finish 24
}

write() {
  printf '%s' "$2" >"$folder/$1.$nonce" 2>/dev/null && mv -f "$folder/$1.$nonce" "$folder/$1" 2>/dev/null && return 0
  rm -f "$folder/$1.$nonce"
  cannot_write "$folder/$1"
}

# Sets launch_nonce launch_by launch_boot of an attempt.
read_launch() {
  launch_nonce='' launch_by='' launch_boot=''
  { while IFS='=' read -r key value; do
    case $key in nonce) launch_nonce=$value ;; launcher) launch_by=$value ;; boot) launch_boot=$value ;; esac
  done; } 2>/dev/null <"$1/launch"
  [ -n "$launch_nonce" ]
}

# Sets last to the newest attempt's number, 0000 if there is none.
find_last() {
  last=0000
  for attempt in "$folder"/attempts/[0-9][0-9][0-9][0-9]; do [ -d "$attempt" ] && last=${attempt##*/}; done
}

# What is known of the run that is there, in words.
state_of_run() {
  state="it was never started to its end"
  if p_first "$folder/exit.json"; then
    p_number_of code "$p_content" && state="ended with exit code $p_number"
    case $p_content in *'"stop":true'*) state=stopped ;; esac
  elif p_read "$folder/token.json"; then
    state_token=$p_content
    token_presence_in "$folder" "$state_token"
    case $presence in alive) state=running ;; *) state=$presence ;; esac
    [ "$presence" != gone ] || { token_family "$state_token" "$folder" && [ -z "$family" ] || state="running without its supervisor"; }
  elif read_launch "$folder/attempts/$last" && [ "$launch_boot" = "$here_boot" ] && proc_is "$launch_by"; then
    state=starting
  fi
}

# Makes the attempt's folder, which is the lock, and says in it whose it is.
claim() {
  record=$folder/attempts/$1 attempt=$1
  said=$(mkdir "$record" 2>&1) || { [ -d "$record" ] && return 1 || cannot_write "$record"; }
  is_ours=1
  sign
}

sign() {
  printf 'nonce=%s\nlauncher=%s\nboot=%s\n' "$nonce" "$launcher" "$here_boot" >"$record/launch.new" 2>/dev/null &&
    mv -f "$record/launch.new" "$record/launch" 2>/dev/null || cannot_write "$record/launch"
}

# An earlier sending of this script may still be at work: then it is waited for. If it is dead, its work goes on here.
continue_ours() {
  record=$folder/attempts/$last attempt=$last
  for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    [ ! -d "$record/supervisor" ] || return 0
    [ "$launch_boot" = "$here_boot" ] && proc_is "$launch_by" || break
    proc_nap 0.5
    read_launch "$record"
  done
  [ -d "$record/supervisor" ] && return 0
  [ "$launch_boot" = "$here_boot" ] && proc_is "$launch_by" && finish 31
  is_ours=1
  [ "$resume" = 1 ] || is_made=1
  sign
}

begin() {
  parent=${folder%/*}
  mkdir -p "$parent" 2>/dev/null || [ -d "$parent" ] || cannot_write "$parent"
  if mkdir "$folder" 2>/dev/null; then
    is_made=1
    mkdir "$folder/attempts" 2>/dev/null || { is_ours=1 record=$folder/attempts && cannot_write "$folder/attempts"; }
    claim 0001 && return 0
  elif [ ! -d "$folder" ]; then
    cannot_write "$folder"
  fi
  # Whoever has just made the folder says at once whose it is.
  for n in 1 2 3 4 5; do
    find_last
    read_launch "$folder/attempts/$last" && break
    proc_nap 0.1
  done
  if [ "$launch_nonce" = "$nonce" ]; then continue_ours && return 0; fi
  state_of_run
  tell state "$state"
  finish 20
}

begin_again() {
  [ -d "$folder" ] || finish 22
  mkdir -p "$folder/attempts" 2>/dev/null || cannot_write "$folder/attempts"
  find_last
  read_launch "$folder/attempts/$last" && [ "$launch_nonce" = "$nonce" ] && continue_ours && return 0
  if p_read "$folder/token.json"; then
    token_presence_in "$folder" "$p_content"
    case $presence in
      alive) tell state running && finish 21 ;;
      "another namespace" | unreadable) tell state "$presence" && finish 21 ;;
      gone)
        run_known "$folder"
        # shellcheck disable=SC2086
        family_find "$token_marker" "$token_ticks" "$token_uid" $$ "$token_pid" "$run_pipe" $run_known && nobody_lives
        ;;
    esac
  fi
  if [ -n "$launch_nonce" ] && [ "$launch_boot" = "$here_boot" ]; then
    proc_is "$launch_by" && tell state starting && finish 21
    # The processes of an attempt whose token was never written carry its nonce all the same.
    family_find "$launch_nonce" "${launch_by#*:}" "$here_uid" $$ 0 "" && nobody_lives
  fi
  next=1$last
  next=$((next + 1))
  claim "${next#1}" || { tell state "being resumed by another" && finish 21; }
}

nobody_lives() {
  [ -n "$members" ] || return 0
  tell state "without its supervisor, but process ${members%%:*} is alive"
  finish 21
}

# What the attempt before has left says how that one ended, and nothing of this one.
put_away() {
  [ "$resume" = 1 ] || return 0
  before=$((1$attempt - 1))
  before=$folder/attempts/${before#1}
  mkdir -p "$before" 2>/dev/null || cannot_write "$before"
  for name in token.json exit.json stop.requested; do
    [ ! -e "$folder/$name" ] || mv -f "$folder/$name" "$before/$name" || cannot_write "$before/$name"
  done
}

take_leases() {
  leases='' port=''
  lease_root=$workdir/leases lease_launcher=$launcher
  [ -n "$gpus" ] || [ "$needs_port" = 1 ] || return 0
  mkdir -p "$lease_root" 2>/dev/null || cannot_write "$lease_root"
  for gpu in $gpus; do
    lease_take "gpu-$gpu" "$folder" "$nonce"
    case $? in
      1) tell gpu "$gpu" && tell holder "$lease_folder" && undo && finish 26 ;;
      2) cannot_write "$lease_root/gpu-$gpu/owner" ;;
    esac
    leases="$leases gpu-$gpu" taken=$leases
  done
  [ "$needs_port" = 1 ] || return 0
  # Taken by an earlier sending of this script.
  for held in "$lease_root"/port-*; do
    lease_is_ours "${held##*/}" "$nonce" && leases="$leases ${held##*/}" && port=${held##*-} && return 0
  done
  lease_port "$folder" "$nonce"
  case $? in 1) undo && finish 27 ;; 2) cannot_write "$lease_root/$lease_name/owner" ;; esac
  leases="$leases $lease_name" taken=$leases port=${lease_name#port-}
}

write_files() {
  n=0
  while [ "$n" -lt "$num_files" ]; do
    eval "write \"\$file_${n}_name\" \"\$file_${n}_text\""
    n=$((n + 1))
  done
  write supervise.conf "${conf}port=$port
leases='$leases'
"
}

# With nothing open that is the connection's: it would never end while the job lives.
start() {
  (
    trap - HUP PIPE
    unset DFLASHCTL_MARKER
    cd /
    exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- </dev/null >/dev/null 2>"$record/supervisor.err"
    for open in /proc/self/fd/*; do
      case ${open##*/} in [0-9]) ;; *) lingers "${open##*/}" && break ;; esac
    done
    if command -v setsid >/dev/null && [ "$has_more" = 0 ]; then exec setsid "$sh" "$supervisor/supervise.sh" "$folder" "$attempt"; fi
    # shellcheck disable=SC2154
    exec "$here_python" -I -S -c 'import os, sys
os.setsid()
os.closerange(3, 65536)
os.execvp(sys.argv[1], sys.argv[1:])' "$sh" "$supervisor/supervise.sh" "$folder" "$attempt"
  ) &
  started=$!
}

# Whether a descriptor above 9, which this shell can not close, would be handed on; it is one that python3 can close.
has_more=0
lingers() {
  flags=
  { while read -r key value; do [ "$key" != flags: ] || flags=$value; done; } 2>/dev/null <"/proc/self/fdinfo/$1"
  # 02000000: closed by the next exec.
  [ -n "$flags" ] && [ $((0$flags & 02000000)) = 0 ] && proc_python_works && has_more=1
}

# Until the job has outlived its first moments, or whatever else became of it is certain.
watch_start() {
  proc_clock
  began_cs=$now_cs seen_cs=''
  while :; do
    # Looked for before the process: what that writes at its end is then not taken for missing.
    is_over=0
    [ ! -f "$folder/exit.json" ] || is_over=1
    job='' is_alive=0
    p_first "$record/job" && job=$p_content
    token_lives "$folder/token.json" && [ "$token_marker" = "$nonce" ] && is_alive=1
    [ "$is_over" = 0 ] || { is_ended && return 0; }
    proc_clock
    if [ "$is_alive" = 1 ] && [ -n "$job" ]; then
      [ -n "$seen_cs" ] || see
      # Of a job that has ended the supervisor will write the end.
      [ $((now_cs - seen_cs)) -lt "$settle_cs" ] || ! proc_is "$job" || return 0
    fi
    limit_cs=3000
    [ "$is_alive" = 1 ] || [ -z "$started" ] || ! is_dead "$started" || limit_cs=100
    [ $((now_cs - began_cs)) -lt "$limit_cs" ] || is_lost
    proc_nap 0.05
  done
}

# Sets seen_cs to when the job began, or to now where the clock of /proc/stat is not that of /proc/uptime (lxcfs).
see() {
  seen_cs=${job#*:}
  [ "$began_cs" -le "$seen_cs" ] && [ "$seen_cs" -le "$now_cs" ] || seen_cs=$now_cs
}

is_ended() {
  p_first "$folder/exit.json"
  # One that has done its work already is none that did not come up.
  case $p_content in *'"code":0,'*'"stop":false'*) return 0 ;; esac
  tell exit "$p_content"
  tail=$folder/log
  finish 29
}

is_lost() {
  if [ -n "$started" ] && [ ! -f "$folder/token.json" ] && is_dead "$started"; then
    # It gave up before it began. For want of room?
    rmdir "$record/supervisor" 2>/dev/null
    is_ours=1
    printf '%8191s' '' >"$record/room" 2>/dev/null || cannot_write "$record/token.json"
    rm -f "$record/room"
  fi
  tail=$record/supervisor.err
  finish 28
}

is_dead() {
  proc_stat "$1" || return 0
  case $stat_state in [ZXx]) return 0 ;; esac
  return 1
}

# This very process: $$ is that of the shell around it.
{ read -r own_pid p_rest; } 2>/dev/null </proc/self/stat
proc_here && proc_stat "${own_pid:-}" || finish 32
launcher=$own_pid:$stat_ticks
[ -r "$supervisor/supervise.sh" ] && [ -r "$supervisor/pump.sh" ] || finish 23
command -v setsid >/dev/null || proc_python_works || finish 25
if [ "$resume" = 1 ]; then begin_again; else begin; fi
started=
if [ ! -d "$record/supervisor" ]; then
  take_leases
  write_files
  put_away
  start
fi
watch_start
tell attempt "$((1$attempt - 10000))"
for lease in "$workdir"/leases/port-*; do
  lease_root=$workdir/leases
  lease_is_ours "${lease##*/}" "$nonce" && tell port "${lease##*-}"
done
p_read "$folder/token.json"
tell token "$p_content"
finish 0
