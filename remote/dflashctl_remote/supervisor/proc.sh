# Processes by token, for POSIX sh: who one is, whether it is still the same one, what belongs to a run, and signals that
# reach no other. Reads /proc with the shell's own `read`; nothing is ever looked for by name or pattern.
# Functions only, for the scripts of both sides. A process is written pid:ticks. Variables begin with p_, stat_ or here_.

# Sets stat_state stat_parent stat_session stat_flags stat_ticks. Fails if there is no such process.
proc_stat() {
  case $1 in "" | *[!0-9]*) return 1 ;; esac
  p_text=
  # The name of a process may hold anything, line ends too.
  { while IFS= read -r p_line || [ -n "$p_line" ]; do p_text=$p_text$p_line; done; } 2>/dev/null <"/proc/$1/stat" || return 1
  # What stands behind the last parenthesis are letters and numbers.
  # shellcheck disable=SC2086
  set -- ${p_text##*)}
  [ $# -ge 20 ] || return 1
  stat_state=$1 stat_parent=$2 stat_session=$4 stat_flags=$7 stat_ticks=${20}
}

# Sets stat_uid.
proc_uid() {
  stat_uid=
  { while read -r p_key p_real p_effective p_rest; do
    case $p_key in Uid:) stat_uid=$p_effective && break ;; esac
  done; } 2>/dev/null <"/proc/$1/status" || return 1
  [ -n "$stat_uid" ]
}

# Whether pid:ticks is there and has not ended: a zombie has.
proc_is() {
  proc_stat "${1%%:*}" || return 1
  case $stat_state in [ZXx]) return 1 ;; esac
  [ "$stat_ticks" = "${1#*:}" ]
}

# Sets here_boot here_namespace here_uid, once. Fails without Linux' /proc.
proc_here() {
  [ -z "${here_boot:-}" ] || return 0
  { IFS= read -r here_boot; } 2>/dev/null </proc/sys/kernel/random/boot_id || return 1
  here_namespace=$(readlink /proc/self/ns/pid) || return 1
  here_namespace=${here_namespace#*\[} here_namespace=${here_namespace%\]}
  here_uid=$(id -u)
}

# Sets here_python; fails if there is none. One that does not work is found out when it is called.
proc_python() {
  [ -n "${here_python+asked}" ] || here_python=$(command -v python3) || here_python=
  [ -n "$here_python" ]
}

# Whether there is one, and it works: for where nothing else can be done if it does not.
proc_python_works() {
  proc_python && "$here_python" -I -S -c "import os, signal" 2>/dev/null
}

# Sets p_number to the number behind a key of a JSON object.
p_number_of() {
  p_rest=${2#*"\"$1\""}
  [ "$p_rest" != "$2" ] || return 1
  p_rest=${p_rest#"${p_rest%%[!: ]*}"}
  p_number=${p_rest%%[!0-9]*}
  [ -n "$p_number" ]
}

# Sets token_boot token_pid token_ticks token_namespace token_uid token_folder token_marker from the text of a token.json.
token_fields() {
  p_number_of pid "$1" && token_pid=$p_number &&
    p_number_of start_ticks "$1" && token_ticks=$p_number &&
    p_number_of pid_namespace "$1" && token_namespace=$p_number &&
    p_number_of uid "$1" && token_uid=$p_number || return 1
  token_folder=''
  p_number_of folder_inode "$1" && token_folder=$p_number
  token_boot=${1#*\"boot_id\"*\"} token_boot=${token_boot%%\"*}
  # The marker is the last field; a path in it may hold whatever a path may.
  p_rest=${1#*\"marker\"*\"} p_rest=${p_rest%\"*} token_marker=
  while :; do
    case $p_rest in *\\*) ;; *) break ;; esac
    token_marker=$token_marker${p_rest%%\\*} p_rest=${p_rest#*\\}
    case $p_rest in \"* | \\* | /*) ;; *) return 1 ;; esac
    token_marker=$token_marker${p_rest%"${p_rest#?}"} p_rest=${p_rest#?}
  done
  token_marker=$token_marker$p_rest
}

# Sets presence of the process of a token.json's text: alive, gone, another boot, another namespace, unreadable.
token_presence() {
  presence=unreadable
  proc_here && token_fields "$1" || return 0
  if [ "$token_boot" != "$here_boot" ]; then
    presence="another boot"
  elif proc_stat 1 && [ "$stat_ticks" -gt "$token_ticks" ]; then
    # All that there is is younger than the process: its container was started anew.
    presence="another boot"
  elif [ "$token_namespace" != "$here_namespace" ]; then
    presence="another namespace"
  elif [ "$token_pid" -gt 1 ] && proc_is "$token_pid:$token_ticks" && proc_uid "$token_pid" && [ "$stat_uid" = "$token_uid" ]; then
    presence=alive
  else
    presence=gone
  fi
}

# Sets p_content to a small file as one line.
p_read() {
  p_content=
  { while IFS= read -r p_line || [ -n "$p_line" ]; do p_content="$p_content$p_line "; done; } 2>/dev/null <"$1" || return 1
  p_content=${p_content% }
}

# Sets p_content to a file's first line; fails if that is empty or blank.
p_first() {
  p_content=
  { IFS= read -r p_content; } 2>/dev/null <"$1"
  case $p_content in *[!\ ]*) return 0 ;; esac
  return 1
}

# Whether the process of a token.json is alive.
token_lives() {
  p_read "$1" || return 1
  token_presence "$p_content"
  [ "$presence" = alive ]
}

# token_presence_in FOLDER TEXT: as token_presence; "another run" for the token of a run that this folder was copied from.
token_presence_in() {
  token_presence "$2"
  case $presence in "another boot" | unreadable) return 0 ;; esac
  [ -z "$token_folder" ] && return 0
  # shellcheck disable=SC2012
  p_rest=$(ls -di "$1/." 2>/dev/null)
  p_rest=${p_rest#"${p_rest%%[! ]*}"}
  [ "${p_rest%% *}" = "$token_folder" ] || presence="another run"
}

# Sets run_known to the processes, pid:ticks, that the newest supervisor of a run's folder wrote down, and run_pipe.
run_known() {
  run_known='' run_pipe='' p_record=''
  for p_rest in "$1"/attempts/[0-9][0-9][0-9][0-9]; do [ -d "$p_rest" ] && p_record=$p_rest; done
  [ -n "$p_record" ] || return 0
  p_first "$p_record/job" && run_known=$p_content
  p_first "$p_record/pump" && run_known="$run_known $p_content"
  p_first "$p_record/pipe" && run_pipe=$p_content
  return 0
}

# token_family TEXT FOLDER: sets family to the pids of what is alive and belongs to the run of a token.json's text.
token_family() {
  family=
  token_presence_in "$2" "$1"
  case $presence in alive | gone) ;; *) return 0 ;; esac
  run_known "$2"
  # shellcheck disable=SC2086
  family_find "$token_marker" "$token_ticks" "$token_uid" "$$" "$token_pid" "$run_pipe" "$token_pid:$token_ticks" $run_known
  family=
  for p_member in $members; do family="$family ${p_member%%:*}"; done
  family=${family# }
}

# family_find MARKER TICKS UID ASKER SUPERVISOR PIPE KNOWN...
# Sets members to the processes, pid:ticks, of that user that started no earlier and are the run's own. Its own is
#  - what is known by pid:ticks, or carries the marker in its environment;
#  - what was in a session while that was ours: KNOWN may be sNUMBER:TICKS, the latest start that counts;
#  - what can write to the run's log: a holder of PIPE, as readlink shows it. Not in the supervisor's session, whose
#    helpers hold it too;
#  - whoever is in a session that one of these leads or led, while one of these is in it: so long, no other session
#    can have its number;
#  - children of all these.
# ASKER, what is above it, and what is below it are never the run's; 0 if the asker is its supervisor.
family_find() {
  if [ -n "${family_py:-}" ] && proc_python && members=$("$here_python" -I -S -c "$family_py" find "$@" 2>/dev/null); then
    return 0
  fi
  p_marker=$1 p_since=$2 p_uid=$3 p_asker=$4 p_supervisor=$5 p_pipe=$6
  shift 6
  p_known=" $* "
  p_candidates "$p_since" "$p_uid" "$p_asker"
  # Leaders' numbers outlive them.
  members=" " p_leaders=" "
  for p_member in $p_known; do
    p_member=${p_member#s}
    p_leaders="$p_leaders${p_member%%:*} "
  done
  for p_row in $p_rows; do
    p_split "$p_row"
    if p_is_known; then
      members="$members$p_pid:$p_ticks " p_leaders="$p_leaders$p_pid "
    fi
  done
  p_grow
  # shellcheck disable=SC2086
  set -- $members
  members=$*
}

# family_kill SPARED ...: SIGKILL to all that family_find with these arguments finds, but those in the session SPARED; with
# python3 for up to two seconds, until nobody is left. Adds them to killed, and sets members to who is left, due to those
# of them that are not spared.
family_kill() {
  p_spared=$1
  shift
  if [ -n "${family_py:-}" ] && proc_python && p_found=$("$here_python" -I -S -c "$family_py" kill "$p_spared" "$@" 2>/dev/null); then
    due=${p_found%%/*} members=${p_found#*/}
    members=${members# }
  else
    family_find "$@"
    find_due
    # shellcheck disable=SC2086
    proc_send KILL $due
  fi
  for p_member in $due; do case " ${killed:-} " in *" $p_member "*) ;; *) killed="${killed:-} $p_member" ;; esac; done
  killed=${killed# }
  # A moment to be gone.
  [ -z "$due" ] || proc_nap 0.05
  # shellcheck disable=SC2086
  proc_living $members
  members=$living
  find_due
}

# Sets due to those of members that are not in the session p_spared.
find_due() {
  due=
  for p_member in $members; do
    proc_stat "${p_member%%:*}" && ! p_in_session "$stat_session" "$p_spared" && due="$due $p_member"
  done
  due=${due# }
}

# Sets p_rows to pid:ticks:parent:session of each process that may belong.
p_candidates() {
  p_rows='' p_above=" " p_next=$3
  while [ "$p_next" -gt 1 ] && proc_stat "$p_next"; do p_above="$p_above$p_next " p_next=$stat_parent; done
  p_all=
  for p_folder in /proc/[0-9]*; do
    p_pid=${p_folder#/proc/}
    proc_stat "$p_pid" || continue
    case $stat_state in [ZXx]) continue ;; esac
    # 0x200000: a thread of the kernel.
    [ $((stat_flags & 2097152)) = 0 ] && [ "$p_pid" -gt 1 ] && [ "$stat_ticks" -ge "$1" ] || continue
    p_all="$p_all $p_pid:$stat_ticks:$stat_parent:$stat_session"
  done
  # What the asker started: older ones stand first nearly always, and the rest is found in the next round.
  p_below=" $3 " p_size=0
  while [ "$3" != 0 ] && [ ${#p_below} != "$p_size" ]; do
    p_size=${#p_below}
    for p_row in $p_all; do
      p_split "$p_row"
      case $p_below in *" $p_pid "*) continue ;; *" $p_parent "*) p_below="$p_below$p_pid " ;; esac
    done
  done
  for p_row in $p_all; do
    p_split "$p_row"
    case $p_above$p_below in *" $p_pid "*) continue ;; esac
    proc_uid "$p_pid" && [ "$stat_uid" = "$2" ] && p_rows="$p_rows $p_row"
  done
}

p_split() {
  p_pid=${1%%:*} p_rest=${1#*:}
  p_ticks=${p_rest%%:*} p_rest=${p_rest#*:}
  p_parent=${p_rest%%:*} p_session=${p_rest#*:}
}

p_is_known() {
  case $p_known in *" $p_pid:$p_ticks "*) return 0 ;; *" s$p_session:"*)
    p_rest=${p_known#*" s$p_session:"}
    [ "$p_ticks" -gt "${p_rest%% *}" ] || return 0 ;;
  esac
  # Line ends within a value must not look like the ends of one.
  { tr '\n\000' '\001\n' <"/proc/$p_pid/environ"; } 2>/dev/null | grep -qxF "DFLASHCTL_MARKER=$p_marker" && return 0
  [ -n "$p_pipe" ] && ! p_in_session "$p_session" "$p_supervisor" || return 1
  # shellcheck disable=SC2010
  LC_ALL=C ls -l "/proc/$p_pid/fd" 2>/dev/null | grep -F -- "-> $p_pipe" | grep -q "^l.w"
}

# Never for leader 0: so reads every session that was begun outside of a container.
p_in_session() {
  [ "$2" != 0 ] && [ "$1" = "$2" ]
}

# Adds sessions and children to members until nothing is added.
p_grow() {
  p_size=0
  while [ ${#members} != "$p_size" ]; do
    p_size=${#members} p_sessions=" " p_parents=" "
    for p_row in $p_rows; do
      p_split "$p_row"
      case $members in *" $p_pid:$p_ticks "*) ;; *) continue ;; esac
      p_parents="$p_parents$p_pid "
      case $p_leaders in *" $p_session "*) p_sessions="$p_sessions$p_session " ;; esac
    done
    for p_row in $p_rows; do
      p_split "$p_row"
      case $members in *" $p_pid:$p_ticks "*) continue ;; esac
      case $p_sessions in *" $p_session "*) members="$members$p_pid:$p_ticks " && continue ;; esac
      case $p_parents in *" $p_parent "*) members="$members$p_pid:$p_ticks " ;; esac
    done
  done
}

# proc_send SIGNAL PID:TICKS...  Signals each that is still the same; python3 makes that free of any race.
proc_send() {
  p_signal=$1
  shift
  [ $# -gt 0 ] || return 0
  if [ -n "${family_py:-}" ] && proc_python && "$here_python" -I -S -c "$family_py" send "$p_signal" "$@" 2>/dev/null; then
    return 0
  fi
  for p_member in "$@"; do
    [ "${p_member%%:*}" -gt 1 ] && proc_is "$p_member" && kill -s "$p_signal" "${p_member%%:*}" 2>/dev/null
  done
  return 0
}

# Sets living to those of pid:ticks... that have not ended.
proc_living() {
  living=
  for p_member in "$@"; do proc_is "$p_member" && living="$living $p_member"; done
  living=${living# }
}

# Sets now_cs: hundredths of a second that only ever go on.
proc_clock() {
  read -r now_cs p_rest </proc/uptime
  now_cs=${now_cs%.*}${now_cs#*.}
  while :; do case $now_cs in 0?*) now_cs=${now_cs#0} ;; *) break ;; esac; done
}

proc_nap() {
  sleep "$1" 2>/dev/null || sleep 1
}
