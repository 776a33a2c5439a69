# How a run's processes do: for the scripts that tell it. proc.sh stands before this.

# All of a small text file as one line, without a process of its own.
read_whole() {
  content=
  while IFS= read -r line || [ -n "$line" ]; do content="$content$line "; done <"$1"
}

# Sets token, presence, exit_record, living and is_over for the run in a folder.
see_run() {
  token= presence= exit_record= living= job= is_over=0
  # The token first: what the process writes at its end is then not missed.
  if [ -f "$1/token.json" ] && read_whole "$1/token.json"; then
    token=${content:-damaged}
    token_presence_in "$1" "$token"
  fi
  if [ -f "$1/exit.json" ] && read_whole "$1/exit.json"; then exit_record=$content; fi
  if [ -n "$token" ] && [ -z "$exit_record" ] && [ "$presence" = gone ]; then
    token_family "$token" "$1"
    living=$family
  fi
  if [ "$presence" = alive ] && [ -d "$1/attempts" ]; then
    run_known "$1"
    job=gone
    case $run_known in [0-9]*) proc_is "${run_known%% *}" && job=alive;; esac
  fi
  if [ -n "$exit_record" ]; then is_over=1; fi
  if [ -n "$token" ] && [ "$presence" != alive ] && [ -z "$living" ]; then is_over=1; fi
}

# Prints what see_run has set.
tell_run() {
  printf 'token=%s\npresence=%s\nexit=%s\n' "$token" "$presence" "$exit_record"
  printf 'living=%s\njob=%s\nover=%s\n' "$living" "$job" "$is_over"
}

# Seconds since 1970 of a file's last change; nothing if it is not there.
changed_at() {
  [ -f "$1" ] || return 0
  stat -c %.3Y "$1" 2>/dev/null || stat -c %Y "$1" 2>/dev/null || date -r "$1" +%s
}
