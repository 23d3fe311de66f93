"""Git: repositories that come and go with credentials, and an agent that never sees these.

    routes → service → clone | commits | looks | push → guard → operations | scratch → commands
           → children | reasons | rails → asked | places | words

Three accounts do the work. Whatever is done with credentials is done by the *keeper*, an account of its own, in folders
that `user` cannot write: no hook, filter or configuration of a workspace ever runs there. Whatever is done in a
workspace is done as `user`, without credentials and without a way to more rights. No git runs as root.

`push_client` and `wrapper.sh` are programs of their own: they are what an agent's `git push` becomes.
"""
