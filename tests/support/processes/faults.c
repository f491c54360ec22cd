/* Stands between a program and the C library (LD_PRELOAD), counts the calls that concern files under one folder, and
 * strikes at the k-th: makes it fail, moves fewer bytes than asked, or sends the process a signal before it.
 *
 * Nothing is armed at first. The program under attack arms it by `faults_arm`, through ctypes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum mode { ONCE, FROM, SHORT, KILL, TERM };
enum verdict { PASS, FAIL, CUT };

static char folder[PATH_MAX];
static size_t folder_length;
static long strike_at; /* 0: count only */
static enum mode mode;
static int failure;
static atomic_long seen, fired;
static char struck[PATH_MAX + 64];

void faults_arm(const char *under, long call, int how, int error)
{
    snprintf(folder, sizeof folder, "%s/", under);
    folder_length = strlen(folder);
    strike_at = call;
    mode = how;
    failure = error;
    atomic_store(&seen, 0);
    atomic_store(&fired, 0);
    struck[0] = '\0';
}

long faults_disarm(void)
{
    folder_length = 0;
    return atomic_load(&seen);
}

long faults_fired(void) { return atomic_load(&fired); }

const char *faults_struck(void) { return struck; }

static int is_inside(const char *path)
{
    return !strncmp(path, folder, folder_length) ||
           (strlen(path) == folder_length - 1 && !strncmp(path, folder, folder_length - 1));
}

/* The path behind a descriptor. Files without a name have one here too: "/folder/#123 (deleted)". */
static const char *path_of(int fd, char *buffer)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, buffer, PATH_MAX - 1);
    if (length < 0)
        return "";
    buffer[length] = '\0';
    return buffer;
}

/* A path that may be relative to a folder, or to a descriptor of one. */
static const char *path_at(int fd, const char *path, char *buffer)
{
    char base[PATH_MAX];
    if (path == NULL)
        return "";
    if (path[0] == '/')
        return path;
    if (fd == AT_FDCWD ? getcwd(base, sizeof base) == NULL : !*path_of(fd, base))
        return "";
    snprintf(buffer, PATH_MAX, "%.2000s/%.2000s", base, path);
    return buffer;
}

static enum verdict judge(const char *call, const char *path)
{
    if (!folder_length || !is_inside(path))
        return PASS;
    long number = atomic_fetch_add(&seen, 1) + 1;
    if (!strike_at || number < strike_at || (number > strike_at && mode != FROM))
        return PASS;
    if (atomic_fetch_add(&fired, 1) == 0)
        snprintf(struck, sizeof struck, "%s %.4000s", call, path);
    if (mode == KILL || mode == TERM) {
        kill(getpid(), mode == KILL ? SIGKILL : SIGTERM);
        return PASS;
    }
    errno = failure;
    return mode == SHORT ? CUT : FAIL;
}

static enum verdict judge_fd(const char *call, int fd)
{
    char buffer[PATH_MAX];
    if (!folder_length)
        return PASS;
    int kept = errno;
    const char *path = path_of(fd, buffer);
    errno = kept;
    return judge(call, path);
}

static enum verdict judge_at(const char *call, int fd, const char *path)
{
    char buffer[PATH_MAX];
    return folder_length ? judge(call, path_at(fd, path, buffer)) : PASS;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) \
        real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* Opening. */
#define OPEN_MODE(flags) \
    mode_t bits = 0; \
    if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) { \
        va_list rest; \
        va_start(rest, flags); \
        bits = va_arg(rest, mode_t); \
        va_end(rest); \
    }
#define OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        REAL(name); \
        OPEN_MODE(flags) \
        return judge_at("open", AT_FDCWD, path) == FAIL ? -1 : real(path, flags, bits); \
    }
#define OPENAT(name) \
    int name(int fd, const char *path, int flags, ...) \
    { \
        REAL(name); \
        OPEN_MODE(flags) \
        return judge_at("open", fd, path) == FAIL ? -1 : real(fd, path, flags, bits); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

int creat(const char *path, mode_t bits)
{
    REAL(creat);
    return judge_at("open", AT_FDCWD, path) == FAIL ? -1 : real(path, bits);
}

/* The forms that a fortified build calls. */
int __open_2(const char *path, int flags) { return open(path, flags); }
int __open64_2(const char *path, int flags) { return open64(path, flags); }
int __openat_2(int fd, const char *path, int flags) { return openat(fd, path, flags); }
int __openat64_2(int fd, const char *path, int flags) { return openat64(fd, path, flags); }

/* Moving bytes: these can also move fewer than asked. */
static size_t half(size_t count) { return count > 1 ? count / 2 : count; }

#define MOVE(name, call, bytes, ...) \
    { \
        REAL(name); \
        enum verdict verdict = judge_fd(call, fd); \
        if (verdict == FAIL) \
            return -1; \
        if (verdict == CUT) \
            bytes = half(bytes); \
        return real(__VA_ARGS__); \
    }
ssize_t read(int fd, void *data, size_t count) MOVE(read, "read", count, fd, data, count)
ssize_t write(int fd, const void *data, size_t count) MOVE(write, "write", count, fd, data, count)
ssize_t pread(int fd, void *data, size_t count, off_t at) MOVE(pread, "read", count, fd, data, count, at)
ssize_t pread64(int fd, void *data, size_t count, off64_t at) MOVE(pread64, "read", count, fd, data, count, at)
ssize_t pwrite(int fd, const void *data, size_t count, off_t at)
    MOVE(pwrite, "pwrite", count, fd, data, count, at)
ssize_t pwrite64(int fd, const void *data, size_t count, off64_t at)
    MOVE(pwrite64, "pwrite", count, fd, data, count, at)
ssize_t __read_chk(int fd, void *data, size_t count, size_t room) { (void)room; return read(fd, data, count); }
ssize_t __pread_chk(int fd, void *data, size_t count, off_t at, size_t room)
{
    (void)room;
    return pread(fd, data, count, at);
}
ssize_t __pread64_chk(int fd, void *data, size_t count, off64_t at, size_t room)
{
    (void)room;
    return pread64(fd, data, count, at);
}

/* With several buffers, fewer bytes are those of the first half of the buffers, or half of a single one. */
#define MOVE_VECTOR(name, call, ...) \
    { \
        REAL(name); \
        enum verdict verdict = judge_fd(call, fd); \
        if (verdict == FAIL) \
            return -1; \
        if (verdict == CUT && count > 1) \
            count /= 2; \
        else if (verdict == CUT && count == 1) { \
            struct iovec part = {vectors[0].iov_base, half(vectors[0].iov_len)}; \
            vectors = &part; \
            return real(__VA_ARGS__); \
        } \
        return real(__VA_ARGS__); \
    }
ssize_t readv(int fd, const struct iovec *vectors, int count) MOVE_VECTOR(readv, "read", fd, vectors, count)
ssize_t writev(int fd, const struct iovec *vectors, int count) MOVE_VECTOR(writev, "write", fd, vectors, count)
ssize_t preadv(int fd, const struct iovec *vectors, int count, off_t at)
    MOVE_VECTOR(preadv, "read", fd, vectors, count, at)
ssize_t preadv64(int fd, const struct iovec *vectors, int count, off64_t at)
    MOVE_VECTOR(preadv64, "read", fd, vectors, count, at)
ssize_t preadv64v2(int fd, const struct iovec *vectors, int count, off64_t at, int flags)
    MOVE_VECTOR(preadv64v2, "read", fd, vectors, count, at, flags)
ssize_t pwritev(int fd, const struct iovec *vectors, int count, off_t at)
    MOVE_VECTOR(pwritev, "pwrite", fd, vectors, count, at)
ssize_t pwritev64(int fd, const struct iovec *vectors, int count, off64_t at)
    MOVE_VECTOR(pwritev64, "pwrite", fd, vectors, count, at)
ssize_t pwritev64v2(int fd, const struct iovec *vectors, int count, off64_t at, int flags)
    MOVE_VECTOR(pwritev64v2, "pwrite", fd, vectors, count, at, flags)

ssize_t sendfile(int fd, int from, off_t *at, size_t count)
    MOVE(sendfile, "write", count, fd, from, at, count)
ssize_t sendfile64(int fd, int from, off64_t *at, size_t count)
    MOVE(sendfile64, "write", count, fd, from, at, count)
ssize_t copy_file_range(int from, off64_t *from_at, int fd, off64_t *at, size_t count, unsigned flags)
    MOVE(copy_file_range, "write", count, from, from_at, fd, at, count, flags)

/* Everything else on a descriptor fails with -1 and errno. */
#define ON_FD(name, call, ...) \
    { \
        REAL(name); \
        return judge_fd(call, fd) == FAIL ? -1 : real(__VA_ARGS__); \
    }
int fsync(int fd) ON_FD(fsync, "fsync", fd)
int fdatasync(int fd) ON_FD(fdatasync, "fsync", fd)
int syncfs(int fd) ON_FD(syncfs, "fsync", fd)
int ftruncate(int fd, off_t size) ON_FD(ftruncate, "truncate", fd, size)
int ftruncate64(int fd, off64_t size) ON_FD(ftruncate64, "truncate", fd, size)
int fallocate(int fd, int how, off_t at, off_t count) ON_FD(fallocate, "fallocate", fd, how, at, count)
int fallocate64(int fd, int how, off64_t at, off64_t count) ON_FD(fallocate64, "fallocate", fd, how, at, count)
int flock(int fd, int how) ON_FD(flock, "flock", fd, how)

/* These return the error. */
int posix_fallocate(int fd, off_t at, off_t count)
{
    REAL(posix_fallocate);
    return judge_fd("fallocate", fd) == FAIL ? failure : real(fd, at, count);
}
int posix_fallocate64(int fd, off64_t at, off64_t count)
{
    REAL(posix_fallocate64);
    return judge_fd("fallocate", fd) == FAIL ? failure : real(fd, at, count);
}

/* A close that fails has closed all the same. That of a folder never fails: no file system has a say in it. */
static int is_folder(int fd)
{
    struct stat found;
    int kept = errno;
    int answer = fstat(fd, &found) == 0 && S_ISDIR(found.st_mode);
    errno = kept;
    return answer;
}

int close(int fd)
{
    REAL(close);
    enum verdict verdict = folder_length && !is_folder(fd) ? judge_fd("close", fd) : PASS;
    int result = real(fd);
    if (verdict != FAIL)
        return result;
    errno = failure;
    return -1;
}

void *mmap(void *where, size_t count, int protection, int flags, int fd, off_t at)
{
    REAL(mmap);
    return fd >= 0 && judge_fd("mmap", fd) == FAIL ? MAP_FAILED : real(where, count, protection, flags, fd, at);
}
void *mmap64(void *where, size_t count, int protection, int flags, int fd, off64_t at)
{
    REAL(mmap64);
    return fd >= 0 && judge_fd("mmap", fd) == FAIL ? MAP_FAILED : real(where, count, protection, flags, fd, at);
}

/* Names. */
#define ON_PATH(name, call, fd, path, ...) \
    { \
        REAL(name); \
        return judge_at(call, fd, path) == FAIL ? -1 : real(__VA_ARGS__); \
    }
int rename(const char *old, const char *new) ON_PATH(rename, "rename", AT_FDCWD, new, old, new)
int renameat(int old_fd, const char *old, int new_fd, const char *new)
    ON_PATH(renameat, "rename", new_fd, new, old_fd, old, new_fd, new)
int renameat2(int old_fd, const char *old, int new_fd, const char *new, unsigned flags)
    ON_PATH(renameat2, "rename", new_fd, new, old_fd, old, new_fd, new, flags)
int link(const char *old, const char *new) ON_PATH(link, "link", AT_FDCWD, new, old, new)
int linkat(int old_fd, const char *old, int new_fd, const char *new, int flags)
    ON_PATH(linkat, "link", new_fd, new, old_fd, old, new_fd, new, flags)
int mkdir(const char *path, mode_t bits) ON_PATH(mkdir, "mkdir", AT_FDCWD, path, path, bits)
int mkdirat(int fd, const char *path, mode_t bits) ON_PATH(mkdirat, "mkdir", fd, path, fd, path, bits)
int unlink(const char *path) ON_PATH(unlink, "unlink", AT_FDCWD, path, path)
int unlinkat(int fd, const char *path, int flags) ON_PATH(unlinkat, "unlink", fd, path, fd, path, flags)
int rmdir(const char *path) ON_PATH(rmdir, "rmdir", AT_FDCWD, path, path)
int truncate(const char *path, off_t size) ON_PATH(truncate, "truncate", AT_FDCWD, path, path, size)
int truncate64(const char *path, off64_t size) ON_PATH(truncate64, "truncate", AT_FDCWD, path, path, size)

/* A rename that swaps two names has a wrapper in newer C libraries only; callers may go past it. */
long syscall(long number, ...)
{
    REAL(syscall);
    long part[6];
    va_list rest;
    va_start(rest, number);
    for (int index = 0; index < 6; index++)
        part[index] = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_renameat2 && judge_at("rename", (int)part[2], (const char *)part[3]) == FAIL)
        return -1;
    return real(number, part[0], part[1], part[2], part[3], part[4], part[5]);
}
