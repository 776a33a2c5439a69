# The log of a job: standard input into ./log until its end, rotated by size into ./log.<offset of its first byte>.
# usage: pump.sh LIMIT_BYTES NUM_LOGS. No byte is lost or doubled, and a line is in the file at once.
# On a full disk it goes on reading, so that the job neither waits nor dies, and says later what is missing.
set -u
umask 077
LC_ALL=C
export LC_ALL
trap '' HUP INT QUIT TERM PIPE
limit_bytes=$1 num_logs=$2
# A read takes no more than this, so that a piece that could not be written is a small one.
piece_bytes=4096
line_end='
'

# Sets size_bytes of a file; 0 if it is not there.
size_of() {
  size_bytes=0
  [ -f "$1" ] || return 0
  # shellcheck disable=SC2012
  size_bytes=$(ls -ln "$1" | { read -r mode links user group size rest && echo "$size"; })
}

rotate() {
  base=0 oldest='' count=0
  for rotated in log.*; do
    start=${rotated#log.}
    case $start in "" | *[!0-9]*) continue ;; esac
    size_of "$rotated"
    [ $((start + size_bytes)) -le "$base" ] || base=$((start + size_bytes))
    [ -n "$oldest" ] && [ "$oldest" -le "$start" ] || oldest=$start
    count=$((count + 1))
  done
  # A name is given once and for ever.
  [ ! -e "log.$base" ] && mv log "log.$base" && [ "$count" -ge "$num_logs" ] && rm -f "log.$oldest"
}

# Copies until the log is full or the input ends; sets rc, and is_end.
copy() {
  size_of log
  if [ "$size_bytes" -ge "$limit_bytes" ]; then
    rotate
    size_of log
  fi
  num_pieces=$(((limit_bytes - size_bytes) / piece_bytes))
  [ "$num_pieces" -ge 1 ] || num_pieces=1
  is_end=0
  said=$(dd "bs=$piece_bytes" "count=$num_pieces" 2>&1 >>log)
  rc=$?
  # "12+3 records in": whole pieces and shorter ones; fewer than asked for means that the input has ended.
  num_read=${said%% records in*}
  num_read=${num_read##*[!0-9+]}
  case $num_read in
    [0-9]*+[0-9]*) [ $(($num_read)) -ge "$num_pieces" ] || [ "$rc" != 0 ] || is_end=1 ;;
    *) [ "$rc" != 0 ] || rc=1 ;;
  esac
}

# Reads and drops until the log can be written again; then says so in it.
drain() {
  lost_bytes=$piece_bytes num_pieces=1
  while :; do
    # Room for the note must be there before a part of it is written.
    if printf '%4096s' '' >log.room 2>/dev/null && rm -f log.room &&
      printf '\ndflashctl supervisor: up to %s bytes of output are missing here, %s\n' "$lost_bytes" "$1" >>log 2>/dev/null; then
      return 0
    fi
    rm -f log.room
    drained=$(dd "bs=$piece_bytes" "count=$num_pieces" 2>/dev/null | wc -c)
    [ "$((drained))" -gt 0 ] || { is_end=1 && return 0; }
    lost_bytes=$((lost_bytes + drained))
    # More at once only of one that writes without a pause: of what others write much could be kept by then.
    if [ "$((drained))" -lt $((num_pieces * piece_bytes)) ]; then num_pieces=1; elif [ "$num_pieces" -lt 64 ]; then num_pieces=$((num_pieces * 2)); fi
  done
}

while :; do
  copy
  [ "$is_end" = 0 ] || exit 0
  if [ "$rc" != 0 ]; then
    reason=${said%%"$line_end"*}
    drain "${reason##*: }"
    [ "$is_end" = 0 ] || exit 0
  fi
done
