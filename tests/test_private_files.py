"""Folders and files of one user: links in their place, modes, and owners."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inflight.private_files import NotPrivate, check_private, make_folders, open_private


def test_folders_are_made_for_their_owner(tmp_path: Path) -> None:
    make_folders(tmp_path / "a" / "b")
    make_folders(tmp_path / "a" / "b")
    assert [(tmp_path / one).stat().st_mode & 0o777 for one in ("a", "a/b")] == [0o700, 0o700]
    for kind in ("link", "file"):
        path = tmp_path / kind
        path.symlink_to(tmp_path / "a") if kind == "link" else path.write_text("")
        with pytest.raises(NotPrivate, match=f"{path} is no folder of its own"):
            make_folders(path)


def test_a_file_is_not_opened_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError), open(tmp_path / "link", "wb", opener=open_private):
        pass
    with open(tmp_path / "file", "xb", opener=open_private):
        assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "target").exists()


def test_others_may_neither_own_nor_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for mode, refused in ((0o700, False), (0o755, False), (0o1777, False), (0o770, True), (0o702, True)):
        tmp_path.chmod(mode)
        if refused:
            with pytest.raises(NotPrivate, match=f"mode {mode:04o}"):
                check_private(tmp_path)
        else:
            check_private(tmp_path)
    tmp_path.chmod(0o700)
    os.chown(tmp_path, 4321, -1) if os.geteuid() == 0 else monkeypatch.setattr(os, "geteuid", lambda: 4321)
    with pytest.raises(NotPrivate, match="belongs to another user"):
        check_private(tmp_path)
