# The runs of a work folder and how each does. proc.sh and run_seen.sh stand before this.
# Reads: workdir run_id (empty: all) tail_bytes.  Prints key=value lines; `tail=N` is followed by N bytes.
set -u
LC_ALL=C
case "$workdir" in "~") workdir=$HOME;; "~/"*) workdir=$HOME/${workdir#"~/"};; esac
printf 'workdir=%s\nnow=%s\n' "$workdir" "$(date +%s)"
for record in "$workdir"/runs/${run_id:-*}/run.json; do
  [ -f "$record" ] || continue
  folder=${record%/run.json}
  printf 'run=%s\n' "${folder##*/}"
  see_run "$folder"
  tell_run
  printf 'token_at=%s\nrecord_at=%s\n' "$(changed_at "$folder/token.json")" "$(changed_at "$record")"
  if [ -n "$run_id" ]; then read_whole "$record"; printf 'record=%s\n' "$content"; fi
  events=$folder/events.jsonl tail=
  if [ -f "$events" ]; then
    tail=$(tail -c "$tail_bytes" "$events"; echo .)
    tail=${tail%.}
    case "$tail" in
      *'"kind":"checkpoint"'*) ;;
      *) for saved in "$folder"/checkpoints/step-*/manifest.json; do
           # A long way back: checkpoints are rare where steps are many.
           [ -f "$saved" ] && printf 'saved=%s\n' "$(grep '"kind":"checkpoint"' "$events" | tail -n 1)"
           break
         done;;
    esac
  fi
  printf 'tail=%s\n%s\n' "${#tail}" "$tail"
done
