/* Faults between a program and its files: preloaded into every process of a run, silent until it is armed.

   A page of memory that the driver and all processes of a run share says which fault is due at which operation, and
   counts operations on files below one folder. Counted are what programs and libraries call in libc; what stdio does
   inside libc is not seen. See layer.py, which compiles this file and has the same table of kinds. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { COMMITS = 1, OPENS = 2, WRITES = 4, READS = 8 };
enum { NONE, KILL, KILL_MAIN, TORN, SIGNAL_MAIN, FULL, READ_ONLY, ERROR, SHORT, SLOW, CLOCK, STOPPED };

struct control {
    _Atomic uint64_t armed, kind, scope, at, count, fired;
    _Atomic uint64_t seen[4]; /* operations of each class, whatever the scope */
    int64_t main, value; /* the run's own process; a signal's number, seconds of the clock, an error's number */
    char root[1024];
};

static struct control *control;
static _Atomic unsigned char below[65536]; /* descriptors of files below the root */

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("GRISTMILL_FAULT_CONTROL");
    int descriptor = path ? syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
    if (descriptor < 0) return;
    void *found = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    syscall(SYS_close, descriptor);
    if (found != MAP_FAILED) control = found;
}

#define NEXT(name) \
    static __typeof__(name) *next; \
    if (!next) next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static int armed(void) { return control && control->armed; }

static int is_below(const char *path) {
    size_t length = armed() ? strlen(control->root) : 0;
    return length && path && !strncmp(path, control->root, length) && (path[length] == '/' || !path[length]);
}

static int is_tracked(int descriptor) { return armed() && descriptor >= 0 && descriptor < 65536 && below[descriptor]; }

static int at_below(int folder, const char *path) { return path && (path[0] == '/' ? is_below(path) : is_tracked(folder)); }

static int track(int descriptor, int yes) {
    if (descriptor >= 0 && descriptor < 65536) below[descriptor] = yes;
    return descriptor;
}

/* The fault that is due at this operation, if any. Those that end or stop the process happen here. */
static uint64_t due(uint64_t what) {
    uint64_t scope = control->scope, kind = control->kind;
    atomic_fetch_add(&control->seen[__builtin_ctzll(what)], 1);
    if (!(scope & what)) return NONE;
    uint64_t number = atomic_fetch_add(&control->count, 1) + 1;
    if (number < control->at || !control->at) return NONE;
    int lasts = kind == FULL || kind == READ_ONLY || kind == SHORT || kind == SLOW;
    if (number > control->at && !lasts) return NONE;
    if ((kind == KILL_MAIN || kind == SIGNAL_MAIN) && control->main <= 1) return NONE; /* not yet announced */
    control->fired = number;
    if (kind == KILL) kill(getpid(), SIGKILL);
    if (kind == KILL_MAIN) kill(control->main, SIGKILL);
    if (kind == SIGNAL_MAIN) kill(control->main, control->value);
    if (kind == STOPPED) kill(getpid(), SIGSTOP);
    if (kind == SLOW) syscall(SYS_nanosleep, &(struct timespec){0, 5000000}, NULL);
    return kind;
}

static int fails(uint64_t what) {
    switch (due(what)) {
    case FULL: errno = ENOSPC; return what & (WRITES | OPENS);
    case READ_ONLY: errno = EROFS; return what & (OPENS | COMMITS);
    case ERROR: errno = control->value; return 1;
    case TORN: kill(getpid(), SIGKILL);
    }
    return 0;
}

/* How much of `size` bytes to write, or -1 */
static ssize_t allowed(int descriptor, size_t size, uint64_t *kind) {
    *kind = is_tracked(descriptor) ? due(WRITES) : NONE;
    if (*kind == FULL) { errno = ENOSPC; return -1; }
    if (*kind == ERROR) { errno = control->value; return -1; }
    return (*kind == SHORT || *kind == TORN) && size > 1 ? size / 2 : size;
}

ssize_t write(int descriptor, const void *data, size_t size) {
    NEXT(write);
    uint64_t kind;
    ssize_t part = allowed(descriptor, size, &kind);
    ssize_t done = part < 0 ? -1 : next(descriptor, data, part);
    if (kind == TORN) kill(getpid(), SIGKILL);
    return done;
}

#define PWRITE(name, offset_type) \
    ssize_t name(int descriptor, const void *data, size_t size, offset_type offset) { \
        NEXT(name); \
        uint64_t kind; \
        ssize_t part = allowed(descriptor, size, &kind); \
        ssize_t done = part < 0 ? -1 : next(descriptor, data, part, offset); \
        if (kind == TORN) kill(getpid(), SIGKILL); \
        return done; \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    NEXT(writev);
    uint64_t kind;
    if (allowed(descriptor, 2, &kind) < 0) return -1;
    ssize_t done = next(descriptor, parts, kind == SHORT || kind == TORN ? 1 : count);
    if (kind == TORN) kill(getpid(), SIGKILL);
    return done;
}

#define READ(name, arguments, given) \
    ssize_t name arguments { \
        NEXT(name); \
        if (is_tracked(descriptor) && due(READS) == ERROR) { errno = control->value; return -1; } \
        return next given; \
    }
READ(read, (int descriptor, void *data, size_t size), (descriptor, data, size))
READ(pread, (int descriptor, void *data, size_t size, off_t offset), (descriptor, data, size, offset))
READ(pread64, (int descriptor, void *data, size_t size, off64_t offset), (descriptor, data, size, offset))

static int opened(int flags) { return flags & (O_CREAT | O_WRONLY | O_RDWR | O_TRUNC) ? OPENS : 0; }

#define MODE(flags) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        NEXT(name); \
        MODE(flags) \
        int mine = is_below(path); \
        if (mine && opened(flags) && fails(OPENS)) return -1; \
        return track(next(path, flags, mode), mine); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        NEXT(name); \
        MODE(flags) \
        int mine = at_below(folder, path); \
        if (mine && opened(flags) && fails(OPENS)) return -1; \
        return track(next(folder, path, flags, mode), mine); \
    }
OPENAT(openat)
OPENAT(openat64)

int close(int descriptor) {
    NEXT(close);
    track(descriptor, 0);
    return next(descriptor);
}

#define COMMIT(name, arguments, given, mine) \
    int name arguments { \
        NEXT(name); \
        if ((mine) && fails(COMMITS)) return -1; \
        return next given; \
    }
COMMIT(fsync, (int descriptor), (descriptor), is_tracked(descriptor))
COMMIT(fdatasync, (int descriptor), (descriptor), is_tracked(descriptor))
COMMIT(ftruncate, (int descriptor, off_t size), (descriptor, size), is_tracked(descriptor))
COMMIT(ftruncate64, (int descriptor, off64_t size), (descriptor, size), is_tracked(descriptor))
COMMIT(rename, (const char *from, const char *to), (from, to), is_below(to))
COMMIT(renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), at_below(b, to))
COMMIT(unlink, (const char *path), (path), is_below(path))
COMMIT(unlinkat, (int folder, const char *path, int flags), (folder, path, flags), at_below(folder, path))
COMMIT(rmdir, (const char *path), (path), is_below(path))

int mkdir(const char *path, mode_t mode) {
    NEXT(mkdir);
    if (is_below(path) && fails(OPENS)) return -1;
    return next(path, mode);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    NEXT(clock_gettime);
    int result = next(clock, now);
    if (clock == CLOCK_REALTIME && armed() && control->kind == CLOCK && control->fired) now->tv_sec += control->value;
    return result;
}
