# Leases of GPUs and ports: <workdir>/leases/NAME/owner. Making the folder is the lock; the owner's run folder, nonce and
# launcher stand in it. proc.sh stands before. Variables begin with lease_.

# lease_take NAME FOLDER NONCE  in the folder lease_root; the caller is the launcher until the run's supervisor is there.
# 0: it is ours. 1: another run has it, lease_folder. 2: nothing can be written.
lease_take() {
  lease_path=$lease_root/$1
  for lease_try in 1 2 3 4 5 6 7 8 9 10; do
    lease_said=$(mkdir "$lease_path" 2>&1) && { lease_write "$2" "$3" && return 0 || return 2; }
    [ -d "$lease_path" ] || return 2
    if lease_read "$lease_path"; then
      [ "$lease_nonce" != "$3" ] || return 0
      lease_is_live && return 1
      lease_seen=$lease_nonce
    else
      # Its launcher writes the owner at once, or has died in between.
      lease_seen='' lease_folder='a start that wrote down no name'
      [ "$lease_try" -lt 6 ] && proc_nap 0.2 && continue
    fi
    lease_steal "$3"
  done
  return 1
}

# Of all that try only one can rename it. Should it be another's by now, who took it a moment ago, it goes back.
lease_steal() {
  lease_old=$lease_path.stale.$1
  mv "$lease_path" "$lease_old" 2>/dev/null || return 0
  lease_read "$lease_old" || lease_nonce=
  if [ "$lease_nonce" != "$lease_seen" ]; then
    mkdir "$lease_path" 2>/dev/null && mv "$lease_old/owner" "$lease_path/owner"
  fi
  rm -rf "$lease_old"
}

lease_write() {
  printf 'folder=%s\nnonce=%s\nlauncher=%s\nboot=%s\n' "$1" "$2" "$lease_launcher" "$here_boot" >"$lease_path/new" 2>/dev/null &&
    mv "$lease_path/new" "$lease_path/owner" 2>/dev/null && return 0
  rm -rf "$lease_path"
  return 1
}

# Sets lease_folder lease_nonce lease_by lease_boot from a lease's owner.
lease_read() {
  lease_folder='' lease_nonce='' lease_by='' lease_boot=''
  { while IFS='=' read -r lease_key lease_value; do
    case $lease_key in
      folder) lease_folder=$lease_value ;;
      nonce) lease_nonce=$lease_value ;;
      launcher) lease_by=$lease_value ;;
      boot) lease_boot=$lease_value ;;
    esac
  done; } 2>/dev/null <"$1/owner" || return 1
  [ -n "$lease_nonce" ] && [ -n "$lease_by" ]
}

# Whether anything of the run that lease_read has found is alive: its launcher, its supervisor, or a process of it.
lease_is_live() {
  [ "$lease_boot" = "$here_boot" ] || return 1
  proc_is "$lease_by" && return 0
  if p_read "$lease_folder/token.json"; then
    token_presence "$p_content"
    [ "$token_marker" != "$lease_nonce" ] || case $presence in alive | "another namespace") return 0 ;; esac
  fi
  family_find "$lease_nonce" "${lease_by#*:}" "$here_uid" "$$" 0 ""
  [ -n "$members" ]
}

# Whether a lease is a run's.
lease_is_ours() {
  lease_read "$lease_root/$1" && [ "$lease_nonce" = "$2" ]
}

# Gives back those of NAMES that are a run's: lease_give NONCE NAMES...
lease_give() {
  lease_of=$1
  shift
  for lease_name in "$@"; do lease_is_ours "$lease_name" "$lease_of" && rm -rf "${lease_root:?}/$lease_name"; done
  return 0
}

# Sets lease_name to a port-N that is free, and takes it: lease_port FOLDER NONCE. 1: there is none. 2: as lease_take.
lease_port() {
  # Below the ports that the kernel gives out by itself. Two starts at once begin at different ones.
  lease_n=$((0x${2%"${2#????}"} % 8000 + 20000)) lease_end=$((lease_n + 200))
  proc_ports
  while [ "$lease_n" -lt "$lease_end" ]; do
    case $ports in
      *" $(printf %04X "$lease_n"):"*) ;;
      *)
        lease_name=port-$lease_n
        lease_take "$lease_name" "$1" "$2"
        case $? in 0) return 0 ;; 2) return 2 ;; esac
        ;;
    esac
    lease_n=$((lease_n + 1))
  done
  return 1
}

# Sets ports to HEX:STATE of each local port in use; 0A is a listening one.
proc_ports() {
  ports=" "
  for p_table in /proc/net/tcp /proc/net/tcp6; do
    { while read -r p_rest p_local p_remote p_state p_rest; do
      ports="$ports${p_local##*:}:$p_state "
    done; } 2>/dev/null <"$p_table"
  done
}
