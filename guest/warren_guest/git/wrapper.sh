#!/bin/sh
# Git for whoever works in this machine. Everything is passed on as it is; but while a task's policy is in force, a push
# is asked for: it is done by those who have the credentials, if they agree.
[ -e '@POLICY@' ] || exec '@REAL@' "$@"
value=
for word do
    if [ -n "$value" ]; then
        value=
        continue
    fi
    case $word in
        -C | -c | --git-dir | --work-tree | --namespace | --super-prefix | --config-env) value=1 ;;
        -*) ;;
        push) exec '@PYTHON@' -IS '@CLIENT@' '@POLICY@' "$@" ;;
        *) break ;;
    esac
done
exec '@REAL@' "$@"
