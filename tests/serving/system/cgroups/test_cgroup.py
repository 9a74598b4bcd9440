"""Where control groups are, read from texts of real systems."""

import pathlib

import pytest

from serving.system.cgroups.cgroup import hierarchies, mount_points

SYSTEMD_V2 = (
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
    "0::/user.slice/user-1000.slice/session-2.scope\n",
)
CONTAINER_V2 = (
    "700 690 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate\n",
    "0::/\n",
)
SEPARATE_V1 = (
    (
        "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
        "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "33 31 0:30 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    ),
    "4:memory:/jobs/17\n2:cpuacct:/\n1:cpu:/\n0::/\n",
)
CONTAINER_V1 = (
    (
        "5 1 0:9 /docker/ab /sys/fs/cgroup/cpu,cpuacct ro master:11 - cgroup cgroup rw,cpu,cpuacct\n"
        "6 1 0:8 /docker/ab /sys/fs/cgroup/memory ro master:12 - cgroup cgroup rw,memory\n"
    ),
    "3:cpu,cpuacct:/docker/ab\n2:memory:/docker/ab\n",
)
STRANGE_V1 = (
    (
        "5 1 0:9 /docker/ab /mnt/my\\040groups/cpu ro - cgroup cgroup rw,cpu,cpuacct\n"
        "6 1 0:8 /docker/ab /mnt/my\\040groups/memory ro - cgroup cgroup rw,memory\n"
    ),
    "3:cpu,cpuacct:/other\n2:memory:/other\n",
)


@pytest.mark.parametrize(
    ("phrase", "texts", "expected"),
    [
        (
            "v2 under systemd: own group, then each above it",
            SYSTEMD_V2,
            [
                ("v2", ["/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope"]),
                ("v2", ["/sys/fs/cgroup/user.slice/user-1000.slice"]),
                ("v2", ["/sys/fs/cgroup/user.slice"]),
                ("v2", ["/sys/fs/cgroup"]),
            ],
        ),
        ("v2 in a container: the mount alone", CONTAINER_V2, [("v2", ["/sys/fs/cgroup"])]),
        (
            "v1 with a mount per controller: own groups, then the roots",
            SEPARATE_V1,
            [
                (
                    "v1",
                    [
                        "/sys/fs/cgroup/cpu",
                        "/sys/fs/cgroup/cpuacct",
                        "/sys/fs/cgroup/memory/jobs/17",
                    ],
                ),
                (
                    "v1",
                    ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpuacct", "/sys/fs/cgroup/memory"],
                ),
            ],
        ),
        (
            "v1 in a container: the host's path shows as the mount",
            CONTAINER_V1,
            [("v1", ["/sys/fs/cgroup/cpu,cpuacct"] * 2 + ["/sys/fs/cgroup/memory"])],
        ),
        (
            "v1 whose own group is outside the mount: the mount, blanks and all",
            STRANGE_V1,
            [("v1", ["/mnt/my groups/cpu"] * 2 + ["/mnt/my groups/memory"])],
        ),
        ("no control groups", ("1 0 0:1 / / rw - ext4 /dev/sda rw\n", ""), []),
        ("a controller missing", (SEPARATE_V1[0].replace(",memory", ",pids"), "0::/\n"), []),
        ("nothing", ("", ""), []),
        ("other text", ("a - b\n", "c\n"), []),
    ],
)
def test_places(phrase, texts, expected):
    """The places where groups may be made are those that mounts and own group tell."""
    found = [(place.kind, list(map(str, place.parents.values()))) for place in hierarchies(*texts)]
    assert found == expected


def test_mounts_to_search():
    """Groups of ours can be in mounts of v2, cpu, cpuacct and memory, and in no others."""
    text = SEPARATE_V1[0] + "36 31 0:33 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
    names = ("cpu", "cpuacct", "memory")
    assert mount_points(text) == tuple(pathlib.Path("/sys/fs/cgroup", name) for name in names)
    assert mount_points(SYSTEMD_V2[0]) == (pathlib.Path("/sys/fs/cgroup"),)
