# Whether this host has the bundle, unchanged. Reads workdir, bundle_sha12, bundle_digest, bundle_num_files and
# bundle_num_bytes; bundle_question prints bundle=there|absent|damaged and bundle_root=PATH.

bundle_folder() {
  case "$workdir" in
    "~") printf '%s/bundles' "$HOME" ;;
    "~/"*) printf '%s/bundles' "$HOME/${workdir#"~/"}" ;;
    *) printf '%s/bundles' "$workdir" ;;
  esac
}

bundle_list() {
  find dflashctl_remote -type f \( -name '*.py' -o -name '*.sh' \) "$@"
}

# $1: the folder that holds dflashctl_remote. By content where sha256sum is there, else by number and size of the files.
bundle_is_whole() (
  cd "$1" 2>/dev/null && [ -d dflashctl_remote ] || exit 1
  LC_ALL=C
  export LC_ALL
  if command -v sha256sum >/dev/null 2>&1; then
    found=$(bundle_list -exec sha256sum {} + 2>/dev/null | sort | sha256sum)
    [ "${found%% *}" = "$bundle_digest" ]
  else
    [ $(($(bundle_list -exec cat {} + 2>/dev/null | wc -c))) = "$bundle_num_bytes" ] &&
      [ $(($(bundle_list | wc -l))) = "$bundle_num_files" ]
  fi
)

bundle_question() {
  bundle_root=$(bundle_folder)/$bundle_sha12
  printf 'bundle_root=%s\n' "$bundle_root"
  if [ ! -d "$bundle_root" ] || ! command -v find >/dev/null 2>&1; then
    echo bundle=absent
  elif bundle_is_whole "$bundle_root"; then
    echo bundle=there
  else
    echo bundle=damaged
  fi
}
