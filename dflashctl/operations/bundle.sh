# Puts the bundle into its folder: unpacked aside, compared, renamed. Comes after bundle_question.sh and the supervisor's
# proc.sh; reads what the question reads, and nonce and archive (a tar.gz in base64).
# Prints bundle=there|sent and bundle_root=PATH, or why=... with what a message needs.
set -u
LC_ALL=C
export LC_ALL

aside=
give_up() {
  [ -z "$aside" ] || rm -rf "$aside"
  printf 'why=%s\n' "$1"
  # The mount point may hold spaces: what stands before the percentage is meant.
  printf 'free_kib=%s\n' "$(df -Pk "$bundles" 2>/dev/null | sed -n 's/.* \([0-9][0-9]*\)  *[0-9][0-9]*% .*/\1/p')"
  exit "$2"
}
trap '[ -z "$aside" ] || rm -rf "$aside"; exit 29' HUP INT TERM

# Prints the folder of each run that may live and was started from this bundle.
living_users() {
  for token in "${bundles%/bundles}"/runs/*/token.json; do
    run=${token%/token.json}
    p_read "$token" || continue
    [ -f "$run/job.sh" ] && ! grep -qF "/bundles/$bundle_sha12" "$run/job.sh" && continue
    token_family "$p_content" "$run"
    case "$presence:$family" in "gone:" | "another boot:") ;; *) printf '%s\n' "$run" ;; esac
  done
}

bundles=$(bundle_folder)
root=$bundles/$bundle_sha12
for tool in find sort wc tar gzip base64; do
  command -v "$tool" >/dev/null 2>&1 || give_up "missing $tool" 30
done
mkdir -p "$bundles" || give_up "no folder" 31
# What a cut link or a crash left behind; a sender needs seconds.
find "$bundles" -maxdepth 1 -name ".$bundle_sha12.*" -mmin +60 -exec rm -rf {} + 2>/dev/null

mkdir "$bundles/.$bundle_sha12.$nonce" || give_up "no folder" 31
aside=$bundles/.$bundle_sha12.$nonce
new=$aside/$bundle_sha12
mkdir "$new" || give_up "not written" 32
printf %s "$archive" | base64 -d >"$aside/archive" || give_up "not written" 32
(cd "$new" && gzip -dc ../archive | tar -xof -) || give_up "not written" 32
bundle_is_whole "$new" || give_up "not as sent" 33

outcome=
# A rename to a name that is taken by a full folder fails: of two senders at once one wins, and the other sees it.
if [ -d "$root" ] && bundle_is_whole "$root"; then
  outcome=there
elif mv "$new" "$bundles/" 2>/dev/null; then
  outcome=sent
elif bundle_is_whole "$root"; then
  outcome=there
else
  users=$(living_users)
  if [ -n "$users" ]; then
    printf 'user=%s\n' "${users%%
*}"
    give_up "in use" 34
  fi
  # Looked at again once it is out of the way: another sender may have put a good one there in between.
  mv "$root" "$aside/old" && {
    bundle_is_whole "$aside/old" && mv "$aside/old" "$root" && outcome=there || {
      mv "$new" "$bundles/" 2>/dev/null && outcome=sent
      bundle_is_whole "$root" && outcome=${outcome:-there}
    }
  }
  [ -n "$outcome" ] || give_up "not renamed" 35
fi
rm -rf "$aside"
printf 'bundle_root=%s\nbundle=%s\n' "$root" "$outcome"
