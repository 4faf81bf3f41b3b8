"""Folders and files of checkpoints: made for their owner alone, and opened as if somebody else had put them there.

What is made has the modes 0700 and 0600, whatever the umask says. Below a folder that its owner has prepared for a
group, with the setgid bit and group write (``chmod g+ws``; Kubernetes does so with ``fsGroup``), it is 2770 and 0660.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from elastic_runtime.errors import InvalidDocument, InvalidSettings

_GROUP = stat.S_ISGID | stat.S_IWGRP
_AS_IT_IS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_GIANT = 1 << 30
"""Bytes from which on a file has to be on the disk."""
_DENSEST = 100
"""How many times smaller than itself a file system may make a checkpoint."""


def make_folders(path: Path) -> None:
    """This folder and the missing ones above it. Those that are there are left as they are. Raises OSError."""
    try:
        _make_folder(path)
    except FileNotFoundError:
        make_folders(path.parent)
        _make_folder(path)  # Where none can be made, as in /proc, that is the answer though its parent is there.


def _make_folder(path: Path) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        os.chmod(path, 0o2770 if is_shared(path.parent.stat()) else 0o700)


def is_shared(folder: os.stat_result) -> bool:
    """Whether a folder is one for a group."""
    return folder.st_mode & _GROUP == _GROUP


def open_root(path: Path) -> int:
    """A descriptor of a store's own folder, which may be a link, since the user has named it.

    Raises:
        InvalidSettings: everybody may write to it.
        OSError: it is not there, or no folder.
    """
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if os.fstat(handle).st_mode & stat.S_IWOTH:
        os.close(handle)
        raise world_writable(path)
    return handle


def world_writable(path: Path) -> InvalidSettings:
    """Return the error for a path that all users may write to."""
    remedy = f"Take that right away (chmod -R o-w {path}); where all files have it, mount with dir_mode=0770"
    return InvalidSettings("checkpoint", f"everybody may write to {path}, and so alter checkpoints", remedy)


def open_folder(name: str, within: int) -> int:
    """A descriptor of a folder in another one; no link is followed.

    Raises:
        InvalidDocument: everybody may write to it.
        OSError: it is not there, or no folder.
    """
    handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _AS_IT_IS, dir_fd=within)
    if os.fstat(handle).st_mode & stat.S_IWOTH:
        os.close(handle)
        raise InvalidDocument("everybody may write to its folder")
    return handle


def open_file(name: str, within: int) -> int:
    """A descriptor for reading a regular file in a folder, and of nothing else: no link, pipe, socket or device.

    Raises:
        InvalidDocument: everybody may write to it, or it is a giant that is not on the disk.
        OSError: it is not there, or is something else.
    """
    # Asked before it is opened, since to open a device may do something.
    _check_regular(name, os.stat(name, dir_fd=within, follow_symlinks=False))
    handle = os.open(name, os.O_RDONLY | _AS_IT_IS, dir_fd=within)
    try:
        found = os.fstat(handle)
        _check_regular(name, found)
        if found.st_mode & stat.S_IWOTH:
            raise InvalidDocument(f"everybody may write to its {name}")
        if found.st_size > _GIANT and found.st_blocks * 512 < found.st_size // _DENSEST:
            raise InvalidDocument(f"its {name} has {found.st_size} bytes that are not on the disk")
    except BaseException:  # raised again: nothing stays open, whatever ended this
        os.close(handle)
        raise
    return handle


def create_file(path: Path, *, shared: bool, existing: bool = False) -> int:
    """A descriptor for reading and writing a new file.

    Args:
        path: where.
        shared: whether for the group.
        existing: whether it may be there; its mode then stays as it is.

    Raises:
        OSError: it is there, or is no regular file.
    """
    exclusive = 0 if existing else os.O_EXCL
    handle = os.open(path, os.O_RDWR | os.O_CREAT | exclusive | _AS_IT_IS, 0o600)
    try:
        found = os.fstat(handle)
        _check_regular(path.name, found)
        if shared and found.st_uid == os.geteuid():
            os.fchmod(handle, 0o660)
    except BaseException:  # raised again: nothing stays open, whatever ended this
        os.close(handle)
        raise
    return handle


def _check_regular(name: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "Not a regular file", name)
