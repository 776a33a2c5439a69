# Watches over one attempt of a run: starts the job, keeps its log, starts it again after a bad end, stops it when asked,
# ends whatever it leaves behind, and writes exit.json last. Bare POSIX sh; python3 where there is one.
# usage: sh supervise.sh FOLDER ATTEMPT, in a session of its own, with nothing open. It asks for TERM, and for nothing else.
# It never carries the run's marker or its secrets: those are the job's own.
set -u
umask 077
LC_ALL=C
export LC_ALL
unset DFLASHCTL_MARKER
cd "$1" || exit 1
record=attempts/$2 here=${0%/*}
# Whoever started it may have been cut off and have tried again: there is one supervisor for an attempt, ever.
mkdir "$record/supervisor" || exit 0
# shellcheck source=/dev/null
. "$here/proc.sh" && . "$here/lease.sh" && . ./supervise.conf || exit 1
family_py=$(cat "$here/family.py")
num_started=0 num_done=0 code=0 swept='' job='' session='' members=''
asked=0 was_stopped=0 is_killed=false is_waiting=0 interrupted=0
trap 'asked=1 interrupted=1; [ "$is_waiting" = 0 ] || stop_job' TERM
trap '' HUP INT QUIT PIPE

# What will have to be written gets its room now: a disk may be full by then, and what is there can be written over.
reserve() {
  printf "%${2}s\n" '' >"$record/$1" || give_up
}

write() {
  printf '%s\n' "$2" 1<>"$record/$1"
}

# Nothing was started, and nobody is told of a supervisor.
give_up() {
  rm -f "$record/exit" "$record/job" "$record/pump" "$record/pipe" token.json.new
  exit 1
}

is_stop_asked() {
  [ "$asked" = 1 ] || [ -e stop.requested ] || [ -e "$record/stop.requested" ]
}

note() {
  printf 'dflashctl supervisor: %s\n' "$*" >&3
}

write_token() {
  proc_here && proc_stat $$ || exit 1
  since=$stat_ticks
  reserve exit 1023
  reserve job 63
  reserve pump 63
  reserve pipe 4095
  # What stands in the run's account by now is of earlier attempts, whatever the clocks say.
  events_at=0
  [ ! -f events.jsonl ] || events_at=$(($(wc -c <events.jsonl)))
  printf '%s\n' "$events_at" >"$record/events_at" || give_up
  # shellcheck disable=SC2012
  inode=$(ls -di .)
  inode=${inode#"${inode%%[! ]*}"}
  printf '{"boot_id":"%s","pid":%s,"start_ticks":%s,"pid_namespace":%s,"uid":%s,"folder_inode":%s,"marker":"%s"}\n' \
    "$here_boot" $$ "$since" "$here_namespace" "$here_uid" "${inode%% *}" "$marker" >token.json.new && mv -f token.json.new token.json || give_up
}

# The log's pipe: descriptor 3 to write, 5 to read, so that a job never finds it without a reader.
open_log() {
  for place in "$record" "$lease_root" "${TMPDIR:-/tmp}" /dev/shm; do
    pipe=$place/.log.$marker
    mkfifo "$pipe" 2>/dev/null && exec 4<>"$pipe" 5<"$pipe" 3>"$pipe" 4>&- && break
    pipe=
  done
  if [ -n "$pipe" ]; then rm -f "$pipe"; else exec 3>>log 5</dev/null; fi
  # Whoever can write to it is the run's.
  is_piped=$pipe pipe=$(readlink "/proc/$$/fd/3")
  write pipe "$pipe"
  if [ -z "$is_piped" ]; then
    note "no pipe can be made here: the log is not rotated"
    return 0
  fi
  (
    exec 3>&- <&5 5<&-
    trap '' TERM
    until sh_run "$here/pump.sh" "$log_limit_bytes" "$num_logs"; do proc_nap 1; done
  ) &
  pump=$!
  proc_stat "$pump" && pump=$pump:$stat_ticks && write pump "$pump"
}

sh_run() {
  "$sh" "$@"
}

# What puts a job into a session of its own, with the signals that a background process of a shell lacks.
choose_starter() {
  # shellcheck disable=SC2016
  starter_py='import os, signal, sys
os.setsid()
for name in ("INT", "QUIT", "HUP", "PIPE", "TERM"):
    signal.signal(getattr(signal, "SIG" + name), signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])'
  starter=
  if command -v setsid >/dev/null && env --default-signal=INT,QUIT,HUP,PIPE,TERM true 2>/dev/null; then
    starter='env'
  elif proc_python_works; then
    starter=python
  else
    starter=setsid
    note "SIGINT and SIGQUIT are ignored by the job unless it asks for them: this host can not restore them"
  fi
}

start_job() {
  oom_before=$(oom_kills)
  num_started=$((num_started + 1)) members='' session=''
  (
    exec 5<&- </dev/null >&3 2>&1 3>&-
    trap - HUP INT QUIT PIPE TERM
    DFLASHCTL_MARKER=$marker LC_ALL=C.UTF-8 PYTHONUNBUFFERED=1
    export DFLASHCTL_MARKER LC_ALL PYTHONUNBUFFERED
    [ -z "$port" ] || { MASTER_PORT=$port && export MASTER_PORT; }
    case $starter in
      env) exec setsid env --default-signal=INT,QUIT,HUP,PIPE,TERM "$sh" ./job.sh ;;
      python) exec "$here_python" -I -S -c "$starter_py" "$sh" ./job.sh ;;
      *) exec setsid "$sh" ./job.sh ;;
    esac
  ) &
  job_pid=$!
  proc_clock
  started_cs=$now_cs
  # Not waited for yet, so its number is its own even if it has ended.
  proc_stat "$job_pid"
  job=$job_pid:$stat_ticks
  write job "$job"
}

# Waits for the job and sets code. TERM ends a `wait` early, and its trap asks the job to stop.
wait_job() {
  is_known=0 is_waiting=1
  # Came before it could be passed on.
  [ "$asked" = 0 ] || stop_job
  while :; do
    interrupted=0
    wait "$job_pid"
    answer=$?
    # 127 the second time: the first answer was the job's own.
    [ "$answer" = 127 ] && [ "$is_known" = 1 ] || code=$answer
    is_known=1
    [ "$interrupted" = 1 ] || break
  done
  is_waiting=0
  proc_clock
  ended_cs=$now_cs
  # Whoever is in its session and started before now was started by it: the number was not free.
  true &
  proc_stat $! && session=s$job_pid:$stat_ticks
}

# TERM to the job itself, which knows best how to end its workers. KILL to all of it when the grace is over.
stop_job() {
  [ "$was_stopped" = 0 ] || return 0
  was_stopped=1
  proc_clock
  stopped_cs=$now_cs
  find_family
  proc_send TERM "$job"
  while proc_is "$job"; do
    if ! is_in_grace; then
      is_killed=true
      note "the job has not ended within $left_s s: it is killed"
      kill_family
      return 0
    fi
    proc_nap 0.1
  done
}

# The grace is read each time: a second stop may be less patient. The copy in the attempt's folder is not the trainer's
# to remove.
is_in_grace() {
  left_s=$grace_s
  if { p_read "$record/stop.requested" || p_read stop.requested; } && p_number_of grace_s "$p_content"; then left_s=$p_number; fi
  proc_clock
  [ $((now_cs - stopped_cs)) -lt $((left_s * 100)) ]
}

find_family() {
  # shellcheck disable=SC2086
  "${1:-family_find}" ${2:-} "$marker" "$since" "$here_uid" 0 $$ "$pipe" $job $session $members
}

# Ends what the job has left behind. What outlives even KILL hangs in a driver.
sweep() {
  ask_family || kill_family || note "process $members outlives SIGKILL"
}

# TERM, once to each, until nobody is left or their time is over.
ask_family() {
  termed=' '
  proc_clock
  began_cs=$now_cs
  while :; do
    find_family
    [ -n "$members" ] || return 0
    due=
    for member in $members; do case $termed in *" $member "*) ;; *) due="$due $member" ;; esac; done
    # shellcheck disable=SC2086
    proc_send TERM $due
    termed="$termed$due "
    add_swept "$due"
    has_time || return 1
    proc_nap 0.1
  done
}

# KILL, again and again, for a few seconds.
kill_family() {
  find_family
  add_swept "$members"
  proc_clock
  began_cs=$now_cs
  while :; do
    # Its group at once, for those that are just being forked.
    proc_is "$job" && kill -s KILL -- "-$job_pid" 2>/dev/null
    killed=
    find_family family_kill 0
    add_swept "$killed"
    [ -n "$members" ] || find_family
    [ -n "$members" ] || return 0
    proc_clock
    [ $((now_cs - began_cs)) -lt 500 ] || return 1
    proc_nap 0.1
  done
}

add_swept() {
  for member in $1; do
    [ "$member" = "$job" ] || case "$swept " in *" ${member%%:*} "*) ;; *) swept="$swept ${member%%:*}" ;; esac
  done
}

# A few seconds and no more than the grace; after a stop what is left of that, which is theirs too, but only a little.
has_time() {
  proc_clock
  passed_cs=$((now_cs - began_cs))
  if [ "$was_stopped" = 1 ]; then
    is_in_grace && [ "$passed_cs" -lt 1500 ]
  else
    [ "$passed_cs" -lt 500 ] && [ "$passed_cs" -lt $((grace_s * 100)) ]
  fi
}

# How often the kernel's out-of-memory killer was at work in this control group; nothing if that is not told.
oom_kills() {
  while IFS=: read -r number kinds path; do
    case $number:$kinds in
      0:) files="/sys/fs/cgroup$path/memory.events /sys/fs/cgroup/memory.events" ;;
      *:memory | *:*,memory | *:memory,*) files="/sys/fs/cgroup/memory$path/memory.oom_control /sys/fs/cgroup/memory/memory.oom_control" ;;
      *) continue ;;
    esac
    for file in $files; do
      [ -r "$file" ] && while read -r key value; do
        [ "$key" = oom_kill ] && echo "$value" && return 0
      done <"$file"
    done
  done 2>/dev/null </proc/self/cgroup
}

is_bad_end() {
  case $code in 0 | 2 | 5 | 130) return 1 ;; esac
  return 0
}

# Whether the job is to be started again. One that dies in its first moments at the very start is reported, not repeated.
is_to_restart() {
  is_bad_end && ! is_stop_asked && [ "$num_done" -lt "$num_restarts" ] || return 1
  [ "$num_started" -gt 1 ] || [ $((ended_cs - started_cs)) -ge "$settle_cs" ] || return 1
  num_done=$((num_done + 1))
  note "the job ended with exit code $code: restart $num_done of $num_restarts in $restart_delay_s s"
  while proc_clock && [ $((now_cs - ended_cs)) -lt $((restart_delay_s * 100)) ]; do
    ! is_stop_asked || return 1
    proc_nap 0.2
  done
}

run_job() {
  while :; do
    start_job
    wait_job
    sweep
    is_to_restart || return 0
  done
}

# The log is whole before the last word is said, if nothing holds it open.
close_log() {
  exec 3>&- 5<&-
  [ -z "$pump" ] || wait_gone "$pump" 1000
}

# wait_gone PID:TICKS HUNDREDTHS
wait_gone() {
  proc_clock
  began_cs=$now_cs
  while proc_is "$1" && proc_clock && [ $((now_cs - began_cs)) -lt "$2" ]; do proc_nap 0.05; done
}

write_exit() {
  signal=null oom=null pids=$(printf '%s' "${swept# }" | tr ' ' ',')
  [ "$code" -le 128 ] || [ "$code" -gt 192 ] || signal=$((code - 128))
  oom_after=$(oom_kills)
  [ -z "${oom_before:-}" ] || [ -z "$oom_after" ] || oom=$((oom_after - oom_before))
  is_stop=false
  is_stop_asked && is_stop=true
  [ "$was_stopped" = 0 ] || is_stop=true
  end=$(printf '{"code":%s,"signal":%s,"at_s":%s,"stop":%s,"killed":%s,"restarts":%s,"swept":[%s],"oom_kills":%s}' \
    "$code" "$signal" "$(date +%s)" "$is_stop" "$is_killed" "$num_done" "$pids" "$oom")
  # Over what was reserved, if there is no room for another file.
  if printf '%s\n' "$end" >"$record/exit.new" 2>/dev/null; then mv -f "$record/exit.new" "$record/exit"; else
    rm -f "$record/exit.new"
    write exit "$end"
  fi
  # On a disk that hangs it would never come back.
  sync "$record/exit" 2>/dev/null &
  proc_stat $! && wait_gone "$!:$stat_ticks" 300
  mv -f "$record/exit" exit.json
}

lease_root=$workdir/leases pipe='' pump=''
write_token
open_log
choose_starter
# shellcheck disable=SC2086
for name in $leases; do
  lease_is_ours "$name" "$marker" || { code=1 && note "the lease of $name was lost: nothing is started"; }
done
if [ "$code" = 0 ] && ! is_stop_asked; then run_job; fi
# shellcheck disable=SC2086
[ -n "$members" ] || lease_give "$marker" $leases
close_log
# A resume brings them anew.
rm -f secrets.env
write_exit
