"""nftables by its own library: a text of commands is applied as one transaction, without starting a process."""

import ctypes
from functools import cache

from poold.errors import NetError

_LIBRARY = "libnftables.so.1"


def run_nft(commands: str) -> str:
    """Apply `commands`, all or none of them, to this thread's namespace, and return what they print."""
    nft = _library()
    # A context keeps the namespace in which it first speaks to the kernel, so it is not kept for later.
    context = nft.nft_ctx_new(0)
    if not context:
        raise NetError("start", _LIBRARY, hint="out of memory")
    try:
        nft.nft_ctx_buffer_output(context)
        nft.nft_ctx_buffer_error(context)
        if nft.nft_run_cmd_from_buffer(context, commands.encode()) != 0:
            raise NetError("apply", "nftables rules", hint=nft.nft_ctx_get_error_buffer(context).decode().strip())
        printed: bytes = nft.nft_ctx_get_output_buffer(context)
        return printed.decode()
    finally:
        nft.nft_ctx_free(context)


@cache
def _library() -> ctypes.CDLL:
    try:
        nft = ctypes.CDLL(_LIBRARY)
    except OSError as exc:
        raise NetError("load", _LIBRARY, hint="apt install libnftables1") from exc
    nft.nft_ctx_new.restype = ctypes.c_void_p
    nft.nft_ctx_new.argtypes = (ctypes.c_uint32,)
    nft.nft_run_cmd_from_buffer.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
    for name in ("nft_ctx_buffer_output", "nft_ctx_buffer_error", "nft_ctx_free"):
        getattr(nft, name).argtypes = (ctypes.c_void_p,)
    for name in ("nft_ctx_get_output_buffer", "nft_ctx_get_error_buffer"):
        getattr(nft, name).argtypes = (ctypes.c_void_p,)
        getattr(nft, name).restype = ctypes.c_char_p
    return nft
