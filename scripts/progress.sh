#!/usr/bin/env bash
# Functions for long steps that show their progress. Sourced by scripts/setup and lab/engine/build; runs nothing itself.
#
#   say NAME TEXT...                    prints one line: the step's name, then the text
#   watched NAME UNIT LIMIT LOG CMD...  runs CMD with its output in the file LOG and no input. Every 10 s it prints
#                                       the time and, if UNIT is not empty, how many lines ("UNITs") LOG has so far.
#                                       Returns CMD's exit code, or 124 after LIMIT seconds. On a failure it prints
#                                       the log's last lines on stderr.

say() {
  printf '%-14s %s\n' "$1" "${*:2}"
}

watched() {
  local name=$1 unit=$2 limit=$3 log=$4 start=$SECONDS next=10 code=0 count pid
  shift 4
  mkdir -p "$(dirname "$log")"
  "$@" </dev/null >"$log" 2>&1 &
  pid=$!
  # Ctrl-C does not reach a background job
  # shellcheck disable=SC2064  # the trap is for this pid
  trap "kill $pid 2>/dev/null; exit 130" INT TERM
  while kill -0 "$pid" 2>/dev/null; do
    if ((SECONDS - start >= limit)); then
      kill "$pid" 2>/dev/null || true
      wait "$pid" 2>/dev/null || true
      code=124
      break
    fi
    if ((SECONDS - start >= next)); then
      next=$((next + 10))
      count=$(wc -l <"$log")
      say "$name" "... $((SECONDS - start)) s${unit:+, $((count)) $unit}"
    fi
    if ((SECONDS - start < 2)); then sleep 0.1; else sleep 1; fi
  done
  if ((code == 0)); then wait "$pid" || code=$?; fi
  trap - INT TERM
  if ((code != 0)); then
    if ((code == 124)); then say "$name" "stopped after $limit s, its limit"; else say "$name" "failed, exit code $code"; fi >&2
    printf 'The last lines of %s:\n' "$log" >&2
    tail -n 20 "$log" | sed 's/^/    /' >&2
  fi
  return "$code"
}
