# The runs of a work folder and how each does. proc.sh and run_seen.sh stand before this.
# Reads: workdir run_id (empty: all) tail_bytes.  Prints key=value lines; `tail=N` is followed by N bytes.
set -u
LC_ALL=C
line_end='
'
case "$workdir" in "~") workdir=$HOME;; "~/"*) workdir=$HOME/${workdir#"~/"};; esac

# Sets tail to the last whole events, and tail_from to the offset of its first byte.
read_events() {
  tail= tail_from=0
  [ -f "$1" ] || return 0
  size=$(($(wc -c <"$1")))
  [ "$size" -le "$tail_bytes" ] || tail_from=$((size - tail_bytes))
  tail=$(tail -c +"$((tail_from + 1))" "$1"; echo .)
  tail=${tail%.}
  [ "$tail_from" != 0 ] || return 0
  begin=${tail%%"$line_end"*}
  tail_from=$((tail_from + ${#begin} + 1)) tail=${tail#*"$line_end"}
  if [ -z "$tail" ]; then
    # One event that is longer than all that is read of others.
    tail=$(tail -n 1 "$1"; echo .)
    tail=${tail%.}
    tail_from=$((size - ${#tail}))
  fi
}

# What is known of the newest attempt under a supervisor.
tell_attempt() {
  attempt=
  for found in "$1"/attempts/[0-9][0-9][0-9][0-9]; do [ -d "$found" ] && attempt=$found; done
  [ -n "$attempt" ] || return 0
  echo supervised=1
  if [ -f "$attempt/events_at" ]; then read -r events_at <"$attempt/events_at" && printf 'events_at=%s\n' "$events_at"; fi
}

tell() {
  folder=$1
  printf 'run=%s\n' "${folder##*/}"
  see_run "$folder"
  tell_run
  tell_attempt "$folder"
  printf 'token_at=%s\nrecord_at=%s\n' "$(changed_at "$folder/token.json")" "$(changed_at "$folder/run.json")"
  if [ -n "$run_id" ] && [ -f "$folder/run.json" ]; then read_whole "$folder/run.json"; printf 'record=%s\n' "$content"; fi
  events=$folder/events.jsonl
  read_events "$events"
  for saved in "$folder"/checkpoints/step-*/manifest.json; do
    if [ ! -f "$saved" ] || [ ! -f "$events" ]; then break; fi
    # A long way back: checkpoints and validations are rare where steps are many.
    case "$tail" in
      *'"kind":"checkpoint"'*) ;;
      *) printf 'saved=%s\n' "$(grep '"kind":"checkpoint"' "$events" | tail -n 1)";;
    esac
    # Not all the way: a run need not have any.
    case "$tail" in
      *'"kind":"validated"'*) ;;
      *) printf 'validated=%s\n' "$(tail -c 8000000 "$events" | grep '"kind":"validated"' | tail -n 1)";;
    esac
    break
  done
  printf 'tail_from=%s\ntail=%s\n%s\n' "$tail_from" "${#tail}" "$tail"
}

why=$(ls -d "$workdir/runs/." 2>&1 >/dev/null)
case $why in *"ermission denied"*) echo "$workdir/runs may not be looked into by user $(id -un 2>/dev/null || id -u)" >&2; exit 22;; esac
if [ -d "$workdir/runs" ] && [ ! -r "$workdir/runs" ]; then
  echo "$workdir/runs may not be read by user $(id -un 2>/dev/null || id -u)" >&2
  exit 22
fi
printf 'workdir=%s\nnow=%s\n' "$workdir" "$(date +%s)"
if [ -n "$run_id" ]; then set -- "$workdir/runs/$run_id"; else set -- "$workdir"/runs/*; fi
for folder do
  # Nothing else can be a run's name.
  case ${folder##*/} in *[!A-Za-z0-9._-]*) continue;; esac
  if [ -f "$folder/run.json" ] || [ -f "$folder/token.json" ]; then tell "$folder"; fi
done
