# What there is on this host to make environments with, and which ones there are. Reads workdir, env_kind (uv, pip, or
# nothing: the interpreter as it is), env_python, env_uv and env_modules. environment_question prints env_*=... lines.

env_home() {
  case "$1" in
    "~") printf %s "$HOME" ;;
    "~/"*) printf %s "$HOME/${1#"~/"}" ;;
    *) printf %s "$1" ;;
  esac
}

# A path of a program, given as one or as a name; nothing if it is not there.
env_program() {
  case "$1" in
    "~/"* | /*)
      program=$(env_home "$1")
      [ -f "$program" ] && [ -x "$program" ] && printf '%s\n' "$program"
      ;;
    */*) ;;
    *)
      for program in "$(command -v "$1" 2>/dev/null)" ${2:+"$HOME/.local/bin/$1" "$HOME/.cargo/bin/$1"}; do
        case "$program" in /*) [ -x "$program" ] && printf '%s\n' "$program" && return ;; esac
      done
      ;;
  esac
}

environment_question() {
  envs=$(env_home "$workdir")/envs
  printf 'env_folder=%s\n' "$envs"
  for record in "$envs"/*/env.json; do
    [ -f "$record" ] || continue
    name=${record%/env.json}
    # Its interpreter is a link to the one that it was made with.
    if [ -x "$name/bin/python" ]; then printf 'env_complete=%s\n' "${name##*/}"; else printf 'env_broken=%s\n' "${name##*/}"; fi
  done
  uv=
  [ "$env_kind" != uv ] || uv=$(env_program "$env_uv" too)
  printf 'env_uv=%s\n' "$uv"
  python=$(env_program "$env_python")
  if [ -z "$python" ] && [ -n "$uv" ]; then
    python=$(cd / && UV_PYTHON_DOWNLOADS=never "$uv" python find --system --no-project "$env_python" 2>/dev/null)
  fi
  printf 'env_python=%s\n' "$python"
  [ -n "$python" ] || return 0
  # As it is, it sees what a job would see; else nothing of the user's settings is to count.
  "$python" ${env_kind:+-I} -c '
import os, sys, sysconfig
version = ".".join(str(part) for part in sys.version_info[:3])
print("env_python_version=" + version)
if sys.executable: print("env_python=" + sys.executable)
try:
    libc = os.confstr("CS_GNU_LIBC_VERSION").split()[0]
except (ValueError, AttributeError):
    libc = "other"
print("env_platform=" + "-".join((sysconfig.get_platform(), sys.implementation.cache_tag, libc)))
import importlib.util
find = importlib.util.find_spec
print("env_has_venv=%d" % (find("venv") is not None and find("ensurepip") is not None))
print("env_missing=" + " ".join(name for name in sys.argv[1:] if find(name) is None))
' $env_modules 2>/dev/null || :
}
