"""The images that machines boot from, and the program that builds them.

One folder an image, with one `image.toml` in it; `python -m images build NAME` makes of it a kernel, an initramfs and a
read-only root file system with the guest inside.

Inputs decide names: a build's folder carries a key that is a hash over everything that went into it, so a build that is
there is the right one, and nothing is ever changed after it has its name. Only `__main__` reads the environment. Only
`programs` starts other programs, only `debian` speaks to the archive, and only `shelf` knows where results stand.

    __main__ → build → kernel | rootfs | guest → modules | cpio | tree | debian
             → shelf | filesystem → manifest → recipe | keys → programs → errors

Import only to the right, as everywhere.
"""
