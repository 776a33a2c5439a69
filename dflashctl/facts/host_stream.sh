# A piece of a file that grows, from an offset on, and how the run that writes it does. proc.sh stands before this.
# Reads: folder name offset wait_s limit with_gpus.  `log` may have been rotated into log.<offset of its first byte>.
# An offset below 0 counts from the end. Prints key=value lines, an empty line, the piece, and `valid=0|1`.
set -u
LC_ALL=C
case "$folder" in "~/"*) folder=$HOME/${folder#"~/"};; esac
[ -d "$folder" ] || { echo "there is no run in $folder" >&2; exit 21; }
stream=$folder/$name

# Sets base (offset of the newest file's first byte), first (that of the oldest), parts (names of those rotated away).
survey() {
  base=0 first= parts=
  for part in "$stream".*; do
    begin=${part##*.}
    case "$begin" in ''|*[!0-9]*) continue;; esac
    [ -f "$part" ] || continue
    size=$(($(wc -c <"$part")))
    parts="$parts $begin"
    [ $((begin + size)) -gt "$base" ] && base=$((begin + size))
    [ -z "$first" ] || [ "$begin" -lt "$first" ] && first=$begin
  done
  [ -n "$first" ] || first=$base
  end=$base
  [ -f "$stream" ] && end=$((base + $(wc -c <"$stream")))
}

waited=0
while :; do
  see_run "$folder"
  survey
  [ "$offset" -lt 0 ] && offset=$((end + offset)) && [ "$offset" -lt "$first" ] && offset=$first
  [ "$end" -gt "$offset" ] && break
  [ "$is_over" = 1 ] && break
  [ "$waited" -ge "$((wait_s * 5))" ] && break
  sleep 0.2 2>/dev/null || { sleep 1; waited=$((waited + 4)); }
  waited=$((waited + 1))
done

at=$offset
[ "$at" -lt "$first" ] && at=$first
[ "$at" -gt "$end" ] && at=$end
tell_run
printf 'at=%s\nend=%s\n' "$at" "$end"
if [ "$with_gpus" = 1 ] && command -v nvidia-smi >/dev/null 2>&1; then
  nvidia-smi --query-gpu=uuid,name,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu \
    --format=csv,noheader,nounits 2>/dev/null | while IFS= read -r line; do printf 'gpu=%s\n' "$line"; done
fi
echo
before=$parts
from=$stream skip=$((at - base))
if [ "$at" -lt "$base" ]; then
  for begin in $parts; do
    size=$(($(wc -c <"$stream.$begin")))
    [ "$begin" -le "$at" ] && [ "$at" -lt "$((begin + size))" ] && from=$stream.$begin skip=$((at - begin))
  done
fi
[ -f "$from" ] && tail -c +"$((skip + 1))" "$from" | head -c "$limit"
survey
valid=1
[ "$parts" = "$before" ] || valid=0
printf '\nvalid=%s\n' "$valid"
