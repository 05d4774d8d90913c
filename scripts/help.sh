#!/usr/bin/env bash
# Sourced by the scripts that a person runs, with their arguments: --help prints the script's own header and ends it,
# before anything is done.
case ${1:-} in
  -h | --help)
    sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"
    exit 0
    ;;
esac
