"""A seccomp filter: the system calls that a program in the sandbox may not make.

It may compute, use the files it is allowed to, and start threads. It may not start processes or other programs, open
sockets, touch other processes, change owners of files, or administer anything. If no mount protects other files, it may
not change modes and times either, which Landlock doesn't watch. A refused call fails with EPERM, but one that sets a
mode then succeeds without effect, because copying a file makes such a call. The filter is a program for the kernel's
packet filter: see seccomp(2) and bpf(4).
"""

from __future__ import annotations

import ctypes
import struct

from tasks.sandbox.inside import kernel

FILTER_MODE = 2
LOAD, JUMP_EQUAL, JUMP_GREATER_EQUAL, JUMP_SET, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL_PROCESS, FAIL = 0x7FFF0000, 0x80000000, 0x00050000  # FAIL with error 0 is success, and nothing done
EPERM, ENOSYS = 1, 38
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data: little-endian, the low word first
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32 = 0x40000000  # numbers from here on belong to x86's third interface
CLONE_THREAD = 0x00010000
SYMBOLIC = ("clone", "clone3", "kill", "tgkill", "prlimit64", "prctl", "fcntl", "ioctl")  # decided by an argument

MODES, TIMES = ("chmod", "fchmod", "fchmodat", "fchmodat2"), ("utime", "utimes", "futimesat", "utimensat")

# name: its numbers on x86_64 and aarch64, None for a machine without the call
NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "clone": (56, 220), "clone3": (435, 435), "kill": (62, 129), "tgkill": (234, 131), "prlimit64": (302, 261),
    "prctl": (157, 167), "fcntl": (72, 25), "ioctl": (16, 29),
    # processes and programs
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    # other processes
    "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    "process_mrelease": (448, 448), "setpriority": (141, 140), "ioprio_set": (251, 30), "migrate_pages": (256, 238),
    "move_pages": (279, 239), "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "perf_event_open": (298, 241),
    # network, what outlives a process, memory and space that no limit counts
    "socket": (41, 198), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "shmat": (30, 196), "shmctl": (31, 195), "msgctl": (71, 187),
    "semctl": (66, 191), "mq_unlink": (241, 181), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "fallocate": (285, 47), "setsockopt": (54, 208),  # it could enlarge the buffers of a pair of sockets
    # modes, owners, times and attributes of files, watching them, ways around their paths
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "setxattrat": (463, 463), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "removexattrat": (466, 466), "file_setattr": (469, 469), "utime": (132, None),
    "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88), "inotify_init": (253, None),
    "inotify_init1": (294, 26), "fanotify_init": (300, 262), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    # the machine
    "bpf": (321, 280), "userfaultfd": (323, 282), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266), "sethostname": (170, 161),
    "setdomainname": (171, 162), "quotactl": (179, 60), "syslog": (103, 116), "vhangup": (153, 58),
    "personality": (135, 92), "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None),
}  # fmt: skip
SET_PDEATHSIG = 1  # of prctl: the program shall not outlive its supervisor
# of fcntl: F_SETOWN, F_SETSIG and F_SETOWN_EX make the kernel signal others, F_SETLEASE and F_NOTIFY watch files
OWNER_OR_LEASE = (8, 10, 15, 1024, 1026)
# of ioctl, only these: TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX. Others change attributes of a file
# that is open only for reading (FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR), send signals, or type into a terminal
ASKING = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)


def known() -> bool:
    """Whether the numbers of this machine's system calls are known here."""
    return kernel.MACHINE in ARCHITECTURES


def program(pid: int, *, protected: bool) -> bytes:
    """The filter as the kernel reads it, for the process with this id: an array of struct sock_filter.
    `protected` says that mounts protect all files but its own."""
    column = list(ARCHITECTURES).index(kernel.MACHINE)
    numbers = {name: both[column] for name, both in NUMBERS.items() if both[column] is not None}
    denied = FAIL | EPERM
    code = [
        _step(LOAD, ARCHITECTURE),
        _step(JUMP_EQUAL, ARCHITECTURES[kernel.MACHINE], 1, 0),
        _step(RETURN, KILL_PROCESS),
        _step(LOAD, NUMBER),
    ]
    if kernel.MACHINE == "x86_64":
        code += [_step(JUMP_GREATER_EQUAL, X32, 0, 1), _step(RETURN, denied)]
    for name, number in numbers.items():
        if name not in SYMBOLIC and not (protected and name in (*MODES, *TIMES)):
            code += [_step(JUMP_EQUAL, number, 0, 1), _step(RETURN, FAIL if name in MODES else denied)]
    # a filter can't read clone3's flags, which are in memory: with ENOSYS glibc falls back to clone
    code += [_step(JUMP_EQUAL, numbers["clone3"], 0, 1), _step(RETURN, FAIL | ENOSYS)]
    for name, argument, test, values, found, otherwise in (
        ("clone", 0, JUMP_SET, (CLONE_THREAD,), ALLOW, denied),
        ("kill", 0, JUMP_EQUAL, (pid,), ALLOW, denied),
        ("tgkill", 0, JUMP_EQUAL, (pid,), ALLOW, denied),
        ("prlimit64", 0, JUMP_EQUAL, (0, pid), ALLOW, denied),
        ("prctl", 0, JUMP_EQUAL, (SET_PDEATHSIG,), denied, ALLOW),
        ("fcntl", 1, JUMP_EQUAL, OWNER_OR_LEASE, denied, ALLOW),
        ("ioctl", 1, JUMP_EQUAL, ASKING, ALLOW, denied),
    ):
        tests = [one for value in values for one in (_step(test, value, 0, 1), _step(RETURN, found))]
        code += [_step(JUMP_EQUAL, numbers[name], 0, len(tests) + 2), _step(LOAD, ARGUMENTS + 8 * argument)]
        code += [*tests, _step(RETURN, otherwise)]
    code.append(_step(RETURN, ALLOW))
    return b"".join(code)


def _step(operation: int, value: int | None, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", operation, if_true, if_false, value)


def restrict(pid: int, *, protected: bool) -> None:
    """Apply the filter to this process and all its children. Needs no_new_privs. Raises OSError."""
    code = program(pid, protected=protected)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer)))
    kernel.call("prctl", kernel.PR_SET_SECCOMP, ctypes.c_ulong(FILTER_MODE), header, ctypes.c_ulong(0), 0)
