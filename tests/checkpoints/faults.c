/* Faults at the k-th operation that changes files below a directory.

   Loaded with LD_PRELOAD in front of the C library. Nothing happens before fault_arm(). The process
   that arms it calls it by ctypes, with a mode of the list below.

   Operations: open that may create a file, write, fsync, rename, mkdir, unlink, rmdir, truncate and
   close of a file that was open for writing. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum mode {
  COUNT = 0,        /* counts, and changes nothing */
  FAIL = 1,         /* the k-th fails */
  SHORT = 2,        /* the k-th writes half of its bytes */
  SHORT_FAIL = 3,   /* likewise, and the next write fails */
  KILL_BEFORE = 4,  /* the process dies before the k-th */
  KILL_AFTER = 5,   /* the process dies after the k-th */
  FULL = 6,         /* all from the k-th on fail that take room */
  DEAD = 7,         /* all from the k-th on fail */
};

enum kind { OPEN, WRITE, SYNC, RENAME, MKDIR, UNLINK, RMDIR, TRUNCATE, CLOSE, KINDS };
static const char *const NAMES[KINDS] = {"open",   "write", "fsync",    "rename", "mkdir",
                                         "unlink", "rmdir", "truncate", "close"};

#define DESCRIPTORS 65536
static char watched[DESCRIPTORS]; /* 1: below the directory, 2: and open for writing */
static char root[4096];
static int armed, mode, fault_errno, mask, writes_fail;
static int report = -1; /* gets the name of the operation that meets the fault */
static long target, count;

void fault_arm(const char *directory, int new_mode, long k, int error, int kinds,
               int report_fd) {
  snprintf(root, sizeof root, "%s", directory);
  mode = new_mode, target = k, fault_errno = error, mask = kinds;
  writes_fail = 0, count = 0, report = report_fd;
  __atomic_store_n(&armed, 1, __ATOMIC_SEQ_CST);
}

void fault_disarm(void) { __atomic_store_n(&armed, 0, __ATOMIC_SEQ_CST); }
long fault_count(void) { return count; }

static int is_below(const char *path) {
  size_t length = strlen(root);
  return path && !strncmp(path, root, length) && (path[length] == '/' || !path[length]);
}

static int is_watched(int fd) { return fd >= 0 && fd < DESCRIPTORS && watched[fd]; }

static int at(int fd, const char *path) {
  if (!__atomic_load_n(&armed, __ATOMIC_SEQ_CST)) return 0;
  return path && path[0] == '/' ? is_below(path) : is_watched(fd);
}

static void die(void) {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

enum answer { PASS, ERROR, HALF, THEN_DIE };

/* Decides what becomes of an operation. */
static enum answer decide(enum kind kind, const char *path) {
  if (!(mask >> kind & 1)) return PASS;
  if (kind == WRITE && __atomic_exchange_n(&writes_fail, 0, __ATOMIC_SEQ_CST)) return ERROR;
  long k = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
  int is_later = (mode == FULL || mode == DEAD) && target && k > target;
  if (k != target && !is_later) return PASS;
  if (k == target && report >= 0) dprintf(report, "%s %s", NAMES[kind], path ? path : "");
  switch (mode) {
    case FAIL:
    case DEAD:
      return ERROR;
    case FULL:
      return kind == OPEN || kind == WRITE || kind == MKDIR || kind == SYNC ? ERROR : PASS;
    case SHORT:
      return HALF;
    case SHORT_FAIL:
      writes_fail = 1;
      return HALF;
    case KILL_BEFORE:
      die();
      return PASS;
    case KILL_AFTER:
      return THEN_DIE;
    default:
      return PASS;
  }
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)

/* Runs an operation that returns a negative number for an error. */
#define RUN(kind, path, call)                               \
  do {                                                      \
    enum answer answer = decide(kind, path);                \
    if (answer == ERROR) return errno = fault_errno, -1;    \
    __typeof__(call) result = call;                         \
    if (answer == THEN_DIE) die();                          \
    return result;                                          \
  } while (0)

static int opened(int fd, int flags) {
  if (fd >= 0 && fd < DESCRIPTORS) watched[fd] = (flags & O_ACCMODE) == O_RDONLY ? 1 : 2;
  return fd;
}

#define OPEN_BODY(name, fd, ...)                                             \
  REAL(name);                                                                \
  mode_t permissions = 0;                                                    \
  if (flags & (O_CREAT | __O_TMPFILE)) {                                     \
    va_list rest;                                                            \
    va_start(rest, flags);                                                   \
    permissions = va_arg(rest, mode_t);                                      \
    va_end(rest);                                                            \
  }                                                                          \
  if (!at(fd, path)) return real(__VA_ARGS__, flags, permissions);           \
  enum answer answer = flags & O_CREAT ? decide(OPEN, path) : PASS;          \
  if (answer == ERROR) return errno = fault_errno, -1;                       \
  int result = opened(real(__VA_ARGS__, flags, permissions), flags);         \
  if (answer == THEN_DIE) die();                                             \
  return result;

int open(const char *path, int flags, ...) { OPEN_BODY(open, AT_FDCWD, path) }
int open64(const char *path, int flags, ...) { OPEN_BODY(open64, AT_FDCWD, path) }
int openat(int fd, const char *path, int flags, ...) { OPEN_BODY(openat, fd, fd, path) }
int openat64(int fd, const char *path, int flags, ...) { OPEN_BODY(openat64, fd, fd, path) }

#define IS_PLAIN(fd) (!__atomic_load_n(&armed, __ATOMIC_SEQ_CST) || !is_watched(fd))

#define WRITE_BODY(half, whole)                           \
  if (IS_PLAIN(fd)) return whole;                         \
  enum answer answer = decide(WRITE, NULL);               \
  if (answer == ERROR) return errno = fault_errno, -1;    \
  ssize_t result = answer == HALF ? half : whole;         \
  if (answer == THEN_DIE) die();                          \
  return result;

ssize_t write(int fd, const void *data, size_t size) {
  REAL(write);
  WRITE_BODY(real(fd, data, (size + 1) / 2), real(fd, data, size))
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
  REAL(pwrite);
  WRITE_BODY(real(fd, data, (size + 1) / 2, offset), real(fd, data, size, offset))
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
  REAL(pwrite64);
  WRITE_BODY(real(fd, data, (size + 1) / 2, offset), real(fd, data, size, offset))
}

/* Half of the bytes of several parts, in one write. */
static ssize_t half_of(int fd, const struct iovec *parts, int number) {
  static ssize_t (*real)(int, const void *, size_t);
  if (!real) real = dlsym(RTLD_NEXT, "write");
  size_t size = 0;
  for (int i = 0; i < number; i++) size += parts[i].iov_len;
  char data[65536];
  size_t copied = 0, wanted = (size + 1) / 2 < sizeof data ? (size + 1) / 2 : sizeof data;
  for (int i = 0; i < number && copied < wanted; i++) {
    size_t part = parts[i].iov_len < wanted - copied ? parts[i].iov_len : wanted - copied;
    memcpy(data + copied, parts[i].iov_base, part);
    copied += part;
  }
  return real(fd, data, wanted);
}

ssize_t writev(int fd, const struct iovec *parts, int number) {
  REAL(writev);
  WRITE_BODY(half_of(fd, parts, number), real(fd, parts, number))
}

ssize_t pwritev(int fd, const struct iovec *parts, int number, off_t offset) {
  REAL(pwritev);
  WRITE_BODY(real(fd, parts, 1, offset), real(fd, parts, number, offset))
}

int fsync(int fd) {
  REAL(fsync);
  if (IS_PLAIN(fd)) return real(fd);
  RUN(SYNC, NULL, real(fd));
}

int fdatasync(int fd) {
  REAL(fdatasync);
  if (IS_PLAIN(fd)) return real(fd);
  RUN(SYNC, NULL, real(fd));
}

int ftruncate(int fd, off_t size) {
  REAL(ftruncate);
  if (IS_PLAIN(fd)) return real(fd, size);
  RUN(TRUNCATE, NULL, real(fd, size));
}

int ftruncate64(int fd, off64_t size) {
  REAL(ftruncate64);
  if (IS_PLAIN(fd)) return real(fd, size);
  RUN(TRUNCATE, NULL, real(fd, size));
}

int close(int fd) {
  REAL(close);
  int was = is_watched(fd) ? watched[fd] : 0;
  if (was) watched[fd] = 0;
  if (was != 2 || !__atomic_load_n(&armed, __ATOMIC_SEQ_CST)) return real(fd);
  enum answer answer = decide(CLOSE, NULL);
  int result = real(fd); /* closed in any case, as Linux does */
  if (answer == THEN_DIE) die();
  if (answer == ERROR) return errno = fault_errno, -1;
  return result;
}

int rename(const char *from, const char *to) {
  REAL(rename);
  if (!at(AT_FDCWD, from) && !at(AT_FDCWD, to)) return real(from, to);
  RUN(RENAME, from, real(from, to));
}

int renameat(int old, const char *from, int new, const char *to) {
  REAL(renameat);
  if (!at(old, from) && !at(new, to)) return real(old, from, new, to);
  RUN(RENAME, from, real(old, from, new, to));
}

int renameat2(int old, const char *from, int new, const char *to, unsigned flags) {
  REAL(renameat2);
  if (!at(old, from) && !at(new, to)) return real(old, from, new, to, flags);
  RUN(RENAME, from, real(old, from, new, to, flags));
}

int mkdir(const char *path, mode_t permissions) {
  REAL(mkdir);
  if (!at(AT_FDCWD, path)) return real(path, permissions);
  RUN(MKDIR, path, real(path, permissions));
}

int mkdirat(int fd, const char *path, mode_t permissions) {
  REAL(mkdirat);
  if (!at(fd, path)) return real(fd, path, permissions);
  RUN(MKDIR, path, real(fd, path, permissions));
}

int unlink(const char *path) {
  REAL(unlink);
  if (!at(AT_FDCWD, path)) return real(path);
  RUN(UNLINK, path, real(path));
}

int unlinkat(int fd, const char *path, int flags) {
  REAL(unlinkat);
  if (!at(fd, path)) return real(fd, path, flags);
  RUN(flags & AT_REMOVEDIR ? RMDIR : UNLINK, path, real(fd, path, flags));
}

int rmdir(const char *path) {
  REAL(rmdir);
  if (!at(AT_FDCWD, path)) return real(path);
  RUN(RMDIR, path, real(path));
}
