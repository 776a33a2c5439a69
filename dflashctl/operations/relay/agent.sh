# Becomes an agent of a relay. Reads: python bundle role sentinel. Names of files are the same bytes at both ends,
# whatever language either host speaks.
for candidate in "$python" python3; do
  case $candidate in "~/"*) candidate=$HOME/${candidate#"~/"} ;; esac
  command -v "$candidate" >/dev/null 2>&1 && exec "$candidate" -I -S -X utf8 -c 'import sys
sys.path.insert(0, sys.argv[1])
from dflashctl_remote.relay.agent import main
sys.exit(main(sys.argv[2], sys.argv[3]))' "$bundle" "$role" "$sentinel"
done
printf '%s failed there is no python3\n' "$sentinel"
exit 127
