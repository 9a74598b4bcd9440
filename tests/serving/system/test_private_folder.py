"""Folders that others could change are told from those that are their user's alone."""

import grp
import os
import pwd
import stat

import pytest

from serving.system import private_folder

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
NOBODY = 65534


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_is_made_for_its_user_alone(tmp_path):
    """With those above, whatever the umask; one that is there is as it was; a link is followed to where it leads."""
    before = os.umask(0)
    try:
        made = private_folder.ensure(tmp_path / "above" / "new", advice="do something")
    finally:
        os.umask(before)
    assert mode(made) == mode(made.parent) == 0o700
    (tmp_path / "readable").mkdir()
    (tmp_path / "readable").chmod(0o755)
    assert private_folder.ensure(tmp_path / "readable", advice="") == tmp_path / "readable"
    assert mode(tmp_path / "readable") == 0o755
    (tmp_path / "link").symlink_to(made)
    assert private_folder.ensure(tmp_path / "link", advice="") == made


@pytest.mark.parametrize("bits", [pytest.param(0o770, marks=needs_root), 0o707, 0o1777])
@pytest.mark.parametrize("which", ["here", "here/below"])
def test_a_folder_that_others_may_write_is_refused(tmp_path, bits, which):
    """Itself, and any above it but such as the temporary one, where nobody touches what is another's."""
    folder = tmp_path / "here" / "below"
    folder.mkdir(parents=True)
    (tmp_path / which).chmod(bits)
    if bits == 0o770:
        os.chown(tmp_path / which, -1, NOBODY)
    if bits == 0o1777 and which == "here":
        assert private_folder.ensure(folder, advice="") == folder
        return
    with pytest.raises(PermissionError, match=f"{tmp_path / which} belongs to .* or call somebody"):
        private_folder.ensure(folder, advice="call somebody")


@pytest.mark.parametrize(("members", "is_alone"), [([], True), (["me"], True), (["you"], False)])
def test_a_group_of_the_user_alone_is_nobody_else(tmp_path, monkeypatch, members, is_alone):
    """On some systems each user has one, and new folders may be written by it."""
    group = tmp_path.stat().st_gid
    user = pwd.struct_passwd(("me", "x", os.geteuid(), group, "", "", ""))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: user)
    monkeypatch.setattr(grp, "getgrgid", lambda _: grp.struct_group(("me", "x", group, members)))
    (tmp_path / "here").mkdir()
    (tmp_path / "here").chmod(0o775)
    if is_alone:
        assert private_folder.ensure(tmp_path / "here", advice="") == tmp_path / "here"
    else:
        with pytest.raises(PermissionError):
            private_folder.ensure(tmp_path / "here", advice="")


@needs_root
@pytest.mark.parametrize("which", ["here", "here/below"])
def test_a_folder_of_another_user_is_refused(tmp_path, which):
    """As somebody has made it who knew where it would be."""
    folder = tmp_path / "here" / "below"
    folder.mkdir(parents=True)
    os.chown(tmp_path / which, NOBODY, NOBODY)
    with pytest.raises(PermissionError, match=f"belongs to user {NOBODY}"):
        private_folder.ensure(folder, advice="")


def test_a_file_is_closed_to_others(tmp_path):
    """Made where there is none; one of before keeps what is in it."""
    file = tmp_path / "file"
    for text in (b"", b"kept"):
        file.write_bytes(text) if text else None
        file.chmod(0o666) if text else None
        private_folder.close_file(file)
        assert mode(file) == 0o600
        assert file.read_bytes() == text
