#!/bin/sh
# Verifies and installs the bundle image v1. Usage: bash install.sh --help
#
# POSIX shell. It only finds a Python, checks onsite.pyz beside it, and hands over; without Python it still verifies.
# A copy "as text" makes lines end in CR LF. The next lines find that; they end in " #" so that they run even then.
airbundle_newline='
' #
if [ "${airbundle_newline%?}" != '' ]; then #
  echo "install.sh: found lines ending in CR LF, needed LF: the bundle was copied as text, or edited." >&2 #
  echo "  What to do: copy the whole bundle again, in binary mode, from where it was built." >&2 #
  exit 5 #
fi #
set -u
unset CDPATH

bundle='image v1'
part_count=1
newline=$airbundle_newline

say() {
  printf '%s\n' "$*" >&2
}

usage() {
  cat <<'END'
Usage: bash install.sh [OPTION]...

The bundle image v1. Without an option it is verified, this host is checked, and after one question the
bundle is installed, started, proven by a generated answer, and activated.

  --verify        check every byte, the signature and this host; changes nothing
  --fingerprint [FILE]  write down what this host is
  --preflight     check whether this host can take the bundle; changes nothing
  --stage         install without activating
  --from PLACE    take parts from this folder or http(s) URL as well; repeatable
  --receive PART  take in parts one by one, as they come; --received lists what is lacking
  --repair-request FILE  ask the sender for what is bad; --patch DIR uses what comes back
  --status        what runs, and which releases there are
  --rollback [V]  return to the release before, or to version V
  --yes           do not ask
  --root DIR      where to install (/opt/airbundle)
  --json          results as JSON
  --help          this text, or a fuller one where there is a Python 3.9 or newer

AIRBUNDLE_PYTHON names the Python to use; AIRBUNDLE_PYTHON=none uses none.
Exit codes: 0 fine, 2 usage, 3 host does not fit, 4 warnings (--strict), 5 integrity, 6 signature,
7 failed and previous release restored, 8 failed and nothing running, 9 busy, 10 nothing could be fetched.
END
}

# --- where this file is ---------------------------------------------------------------------------------------
script=$0
if [ -L "$script" ]; then # a link to it from elsewhere: the bundle is where the file itself is
  followed=$(readlink -f -- "$script" 2>/dev/null) && [ -f "$followed" ] && script=$followed
fi
case $script in
  */*) here=${script%/*} ;;
  *) here=. ;;
esac
here=$(cd -- "${here:-/}" 2>/dev/null && pwd -P) || here=
if [ -z "$here" ] || [ ! -f "$here/install.sh" ]; then
  say "install.sh: cannot tell where the bundle is (started as '$0')."
  say "  What to do: name the file, as in: bash /media/stick/image-v1/install.sh --verify"
  exit 2
fi

# --- hashes -----------------------------------------------------------------------------------------------------
if command -v sha256sum >/dev/null 2>&1; then
  hash_with=sha256sum
elif command -v shasum >/dev/null 2>&1; then
  hash_with='shasum -a 256'
elif command -v openssl >/dev/null 2>&1; then
  hash_with='openssl dgst -sha256 -r'
elif command -v busybox >/dev/null 2>&1; then
  hash_with='busybox sha256sum'
else
  hash_with=
fi

# Prints the SHA-256 of a file, or nothing when it cannot be read.
sha256_of() {
  hash_output=$($hash_with <"$1" 2>/dev/null) || return 1
  printf '%s' "${hash_output%% *}"
}

# Prints the SHA-256 that SHA256SUMS lists for a name, or nothing.
listed_sha256() {
  while IFS= read -r line; do
    if [ "${line#*  }" = "$1" ]; then
      printf '%s' "${line%%  *}"
      return 0
    fi
  done <"$here/SHA256SUMS"
}

# Whether onsite.pyz is what SHA256SUMS says; else why not, in $reason.
onsite_is_whole() {
  reason=
  if [ ! -f "$here/onsite.pyz" ]; then
    reason='onsite.pyz is missing'
  elif [ ! -f "$here/SHA256SUMS" ] || [ ! -r "$here/SHA256SUMS" ]; then
    reason='SHA256SUMS is missing or cannot be read'
  elif [ -z "$hash_with" ]; then
    return 0 # no tool to hash with here: the site program checks itself against bundle.json
  else
    needed=$(listed_sha256 onsite.pyz)
    found=$(sha256_of "$here/onsite.pyz")
    if [ -z "$needed" ]; then
      reason='SHA256SUMS does not list onsite.pyz'
    elif [ "$found" != "$needed" ]; then
      reason="onsite.pyz is damaged: found SHA-256 ${found:-nothing readable}, needed $needed"
    fi
  fi
  [ -z "$reason" ]
}

# --- a Python ---------------------------------------------------------------------------------------------------
python=
pythons_found=

# Takes the candidate as $python when it fits; else notes what it is.
try_python() {
  path=$(command -v "$1" 2>/dev/null) || return 1
  [ -x "$path" ] && [ ! -d "$path" ] || return 1
  # -E -S and no module but sys: nothing in the environment or the current directory can interfere.
  version=$("$path" -E -S -c 'import sys; sys.stdout.write("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) || return 1
  case $version in
    3.9.* | 3.[1-9][0-9].* | [4-9].*) ;;
    [0-9]*)
      pythons_found="$pythons_found${pythons_found:+, }$path is $version"
      return 1
      ;;
    *) return 1 ;;
  esac
  if ! "$path" -I -c 'import argparse, ctypes, hashlib, json, socket, threading, zipfile' 2>/dev/null; then
    pythons_found="$pythons_found${pythons_found:+, }$path is $version, but lacks modules of the standard library"
    return 1
  fi
  python=$path
}

find_python() {
  if [ -n "${AIRBUNDLE_PYTHON:-}" ]; then
    [ "$AIRBUNDLE_PYTHON" = none ] || try_python "$AIRBUNDLE_PYTHON"
    return
  fi
  for candidate in python3 python3.13 python3.12 python3.11 python3.10 python3.9 /usr/libexec/platform-python \
    /usr/local/bin/python3 /opt/*/bin/python3 /opt/rh/*/root/usr/bin/python3; do
    try_python "$candidate" && return
  done
}

# Says why there is no Python.
no_python() {
  if [ "${AIRBUNDLE_PYTHON:-}" = none ]; then
    say "install.sh: AIRBUNDLE_PYTHON=none, so no Python is used."
  elif [ -n "${AIRBUNDLE_PYTHON:-}" ]; then
    say "install.sh: AIRBUNDLE_PYTHON cannot be used: needed Python 3.9 or newer," \
      "found: ${pythons_found:-$AIRBUNDLE_PYTHON does not run as a Python}."
  else
    say "install.sh: needed Python 3.9 or newer, found on this host: ${pythons_found:-none}."
  fi
}

# --- verification without Python ----------------------------------------------------------------------------------
bad=0

fail() {
  printf '[FAIL] %s\n' "$(printf '%s' "$*" | tr '\001-\037\177' '?')" # names may hold what moves a terminal
  bad=$((bad + 1))
}

is_debris() {
  case $(printf '%s' "$1" | tr '[:upper:]' '[:lower:]') in
    ._* | .ds_store | .trash* | .spotlight-v100 | .fseventsd | 'system volume information') return 0 ;;
    \$recycle.bin | thumbs.db | desktop.ini | lost+found | fsck[0-9][0-9][0-9][0-9].rec) return 0 ;;
  esac
  return 1
}

# Whether $1 is among the lines of $2.
among() {
  case "$newline$2$newline" in
    *"$newline$1$newline"*) return 0 ;;
  esac
  return 1
}

check_file() {
  if [ -L "$2" ] || { [ -e "$2" ] && [ ! -f "$2" ]; }; then
    fail "$2: found something that is not a file"
  elif [ ! -e "$2" ]; then
    fail "$2: it is missing"
  else
    say "checking $2 ..."
    found=$(sha256_of "$2")
    if [ "$found" = "$1" ]; then
      printf '[ok  ] %s\n' "$2"
    elif [ -z "$found" ]; then
      fail "$2: it cannot be read"
    else
      fail "$2: found SHA-256 $found, needed $1"
    fi
  fi
}

# Goes through SHA256SUMS; leaves the names in $listed and the number of parts in $parts.
check_listed() {
  listed=
  parts=0
  while IFS= read -r line || [ -n "$line" ]; do
    sum=${line%%  *}
    file=${line#*  }
    case $sum in
      *[!0-9a-f]* | '') sum= ;;
    esac
    case $file in
      *[!A-Za-z0-9._-]* | .* | -* | '') sum= ;;
    esac
    if [ "${#sum}" -ne 64 ]; then
      fail "SHA256SUMS: a line is not a SHA-256 and a plain file name: $(printf '%s' "$line" | tr -d '\r' | cut -c 1-90)"
      continue
    fi
    if among "$file" "$listed"; then
      fail "SHA256SUMS: $file is listed twice"
      continue
    fi
    listed=$listed$newline$file
    case $file in
      payload.tar.*) parts=$((parts + 1)) ;;
    esac
    check_file "$sum" "$file"
  done <SHA256SUMS
}

check_unlisted() {
  for file in * .[!.]* ..?*; do
    [ -e "$file" ] || [ -L "$file" ] || continue
    case $file in
      SHA256SUMS | bundle.json.sig) continue ;;
    esac
    among "$file" "$listed" && continue
    if is_debris "$file"; then
      say "ignored, left by an operating system: $file"
    else
      fail "$file: the bundle does not list it"
    fi
  done
}

verify_without_python() {
  if [ -z "$hash_with" ]; then
    say "install.sh: cannot verify: needed sha256sum (or shasum, openssl, busybox), found none of them."
    exit 3
  fi
  cd -- "$here" || exit 5
  if [ ! -f SHA256SUMS ] || [ ! -r SHA256SUMS ]; then
    fail 'SHA256SUMS: it is missing, or cannot be read'
  else
    check_listed
    for file in bundle.json install.sh onsite.pyz; do
      among "$file" "$listed" || fail "SHA256SUMS: $file is not listed"
    done
    [ "$parts" -eq "$part_count" ] || fail "SHA256SUMS: found $parts parts of the payload listed, needed $part_count"
    check_unlisted
  fi
  printf '%s\n' "Not checked: what bundle.json says, its signature, and whether this host fits." \
    "That needs the site program and a Python 3.9 or newer."
  if [ "$bad" -ne 0 ]; then
    printf '%s\n' "$bundle: $bad problem(s) found." \
      "  What to do: copy each file named above again from where the bundle was built, and move what it does not list" \
      "  out of its directory. Nothing on the media was changed."
    exit 5
  fi
  printf '%s\n' "$bundle: every file is there, and is what SHA256SUMS says."
  exit 0
}

# --- what is wanted ---------------------------------------------------------------------------------------------
wanted=install
[ "${1:-}" != verify ] || wanted=verify
for word in "$@"; do
  case $word in
    -h | --help) wanted=help ;;
    --verify) [ "$wanted" = help ] || wanted=verify ;;
  esac
done

find_python
if [ -n "$python" ] && onsite_is_whole; then
  # -I: no PYTHON* variable, user package or current directory can interfere. -B: nothing is written beside modules.
  exec "$python" -I -B -X utf8 "$here/onsite.pyz" --bundle "$here" "$@"
fi

if [ "$wanted" = help ]; then
  usage
  exit 0
fi
if [ -n "$python" ]; then
  say "install.sh: $reason."
  [ "$wanted" != verify ] || verify_without_python
  say "  What to do: copy the bundle again from where it was built; 'bash install.sh --verify' names every bad file."
  exit 5
fi
no_python
[ "$wanted" != verify ] || verify_without_python
say "  What to do: install Python 3.9 or newer from this system's own packages, or name one that is here:" \
  "AIRBUNDLE_PYTHON=/path/to/python3 bash install.sh. 'bash install.sh --verify' works without Python."
exit 3
