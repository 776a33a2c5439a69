# What a plan for a run must know of a host. run_seen.sh and gpus.sh stand before this, further questions after it.
# Reads: workdir target dataset run_id.  Prints key=value lines.
set -u
at_home() {
  case "$1" in "~") printf %s "$HOME";; "~/"*) printf %s "$HOME/${1#"~/"}";; *) printf %s "$1";; esac
}
tell_file() {
  if [ -f "$2" ] && [ -r "$2" ]; then
    printf '%s=%s\n' "$1" "$(tr '\n' ' ' <"$2")"
  elif [ -e "$2" ]; then
    printf '%s_problem=%s\n' "$1" "it cannot be read by user $(id -un 2>/dev/null || id -u)"
  else
    printf '%s_problem=%s\n' "$1" "there is no such file"
  fi
}
workdir=$(at_home "$workdir") target=$(at_home "$target") dataset=$(at_home "$dataset")
printf 'workdir=%s\ntarget=%s\ndataset=%s\nnow=%s\n' "$workdir" "$target" "$dataset" "$(date +%s)"
tell_file target_config "$target/config.json"
tell_file dataset_manifest "$dataset/manifest.json"
[ -d "$dataset" ] && echo dataset_is_folder=1
[ -e "$workdir/runs/$run_id" ] && echo run_exists=1
# The nearest folder above the work folder that is there says where it will lie.
above=$workdir
while [ ! -d "$above" ] && [ "$above" != / ] && [ -n "$above" ]; do above=${above%/*}; done
printf 'free_kib=%s\n' "$(df -Pk "${above:-/}" 2>/dev/null | tail -n 1 | { read -r fs total used free rest; echo "$free"; })"
tell_gpus
