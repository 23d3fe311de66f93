"""The one door to libnftables. Uses the standard library alone, so that it can be a program of its own, quickly."""

import ctypes
import sys
from functools import cache

LIBRARY = "libnftables.so.1"


def apply(commands: str) -> tuple[bool, str]:
    """Apply `commands` in this thread's namespace: whether that went well, and what they or the library say of it.

    Raises `OSError` if the library cannot be loaded. It waits with `select`: a process whose next descriptor is above
    1,023 is aborted in here.
    """
    nft = _library()
    # A context keeps the namespace in which it first speaks to the kernel, so it is not kept for later.
    context = nft.nft_ctx_new(0)
    if not context:
        return False, "out of memory"
    try:
        nft.nft_ctx_buffer_output(context)
        nft.nft_ctx_buffer_error(context)
        if nft.nft_run_cmd_from_buffer(context, commands.encode()) != 0:
            return False, nft.nft_ctx_get_error_buffer(context).decode().strip()
        return True, nft.nft_ctx_get_output_buffer(context).decode()
    finally:
        nft.nft_ctx_free(context)


@cache
def _library() -> ctypes.CDLL:
    nft = ctypes.CDLL(LIBRARY)
    nft.nft_ctx_new.restype = ctypes.c_void_p
    nft.nft_ctx_new.argtypes = (ctypes.c_uint32,)
    nft.nft_run_cmd_from_buffer.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
    for name in ("nft_ctx_buffer_output", "nft_ctx_buffer_error", "nft_ctx_free"):
        getattr(nft, name).argtypes = (ctypes.c_void_p,)
    for name in ("nft_ctx_get_output_buffer", "nft_ctx_get_error_buffer"):
        getattr(nft, name).argtypes = (ctypes.c_void_p,)
        getattr(nft, name).restype = ctypes.c_char_p
    return nft


if __name__ == "__main__":
    is_done, said = apply(sys.stdin.read())
    sys.stdout.write(said)
    sys.exit(0 if is_done else 1)
