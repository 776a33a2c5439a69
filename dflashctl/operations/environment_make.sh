# Makes an environment: a job of its own under the supervisor, which lets one run at a time. env.json comes last.
# Reads MAKE_KIND, MAKE_UV, MAKE_PYTHON, MAKE_TARGET, MAKE_CACHE, MAKE_RECORD and MAKE_REQUIREMENTS; the arguments
# are those of the install.
set -u
target=$MAKE_TARGET cache=$MAKE_CACHE python=$target/bin/python

if [ -f "$target/env.json" ]; then
  echo "it is there already"
  exit 0
fi
# What a making that died has left; without env.json nothing runs from it.
rm -rf "$target"
mkdir -p "${target%/*}" "$cache" || exit 4

# These may hold passwords, and have been read.
rm -f "${0%/*}/secrets.env"
list=${0%/*}/requirements.txt
trap 'rm -f "$list"' EXIT
trap 'exit 143' HUP INT TERM
(umask 077 && printf %s "$MAKE_REQUIREMENTS" >"$list") || exit 4
unset MAKE_REQUIREMENTS VIRTUAL_ENV CONDA_PREFIX PYTHONPATH PYTHONHOME

# pip shows the addresses of packages with the passwords in them.
without_passwords() {
  while IFS= read -r line || [ -n "$line" ]; do
    case "$line" in
      *://*@*) printf '%s\n' "$line" | sed 's#://[^/[:space:]]*@#://***@#g' ;;
      *) printf '%s\n' "$line" ;;
    esac
  done
}

# Caches on the same filesystem, so that files are linked and not copied; code compiled now, so that the folder never
# changes when jobs run.
install() {
  if [ "$MAKE_KIND" = uv ]; then
    export UV_CACHE_DIR="$cache/uv" UV_PYTHON_DOWNLOADS=never UV_NO_PROGRESS=1 UV_COMPILE_BYTECODE=1
    "$MAKE_UV" venv --no-project --python "$MAKE_PYTHON" "$target" &&
      "$MAKE_UV" pip install --python "$python" -r "$list" "$@"
  else
    export PIP_CACHE_DIR="$cache/pip" PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_PROGRESS_BAR=off PIP_USER=0
    "$MAKE_PYTHON" -m venv "$target" && "$python" -m pip install -r "$list" "$@"
  fi
}
{ install "$@" && : >"$target/.installed"; } 2>&1 | without_passwords
if [ ! -f "$target/.installed" ]; then
  # Half an environment can be what filled the disk.
  rm -rf "$target"
  exit 4
fi
rm -f "$target/.installed" "$list"
exec "$python" -I -c '
import json, os, sys, time
from importlib.metadata import distributions

target = sys.argv[1]
record = json.loads(os.environ["MAKE_RECORD"])
record["installed"] = sorted({"%s==%s" % (d.metadata["Name"], d.version) for d in distributions()}, key=str.lower)
record["python_version"] = ".".join(str(part) for part in sys.version_info[:3])
record["created_at_s"] = time.time()
aside = os.path.join(target, "env.json.part")
with open(aside, "w", encoding="utf-8") as file:
    json.dump(record, file, indent=2)
    file.write("\n")
    file.flush()
    os.fsync(file.fileno())
os.replace(aside, os.path.join(target, "env.json"))
print("%d packages in %s" % (len(record["installed"]), target))
' "$target"
