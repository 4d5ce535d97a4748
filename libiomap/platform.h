/*
 * platform.h - the only door to the operating system
 *
 * Threads, locks, waits, clocks, sleep, per-thread storage, randomness and every system call that does I/O are declared
 * here and nowhere else. platform-posix.[ch] is the production side; a simulator can stand behind the same names.
 * Functions return 0 or a count, or a negative errno.
 */
#ifndef IOMAP_PLATFORM_H
#define IOMAP_PLATFORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include "lockdep.h"

/*
 * The types struct mutex, struct rwsem, struct cond, struct thread, struct plat_aio_event, plat_aio_t live on the
 * side:
 */
#ifdef IOMAP_SIM
#include "platform-sim.h"
#else
#include "platform-posix.h"
#endif

/* --- locks: mutex for short and sleeping locks alike; the rank is checked by lockdep ---------------------- */
void mutex_init(struct mutex *m, enum lock_rank rank);
void mutex_fini(struct mutex *m);
void mutex_lock(struct mutex *m);
bool mutex_trylock(struct mutex *m);
void mutex_unlock(struct mutex *m);

void rwsem_init(struct rwsem *s, enum lock_rank rank);     /* a waiting writer goes before new readers */
void rwsem_fini(struct rwsem *s);
void rwsem_lock_shared(struct rwsem *s);
bool rwsem_trylock_shared(struct rwsem *s);
void rwsem_unlock_shared(struct rwsem *s);
void rwsem_lock(struct rwsem *s);
bool rwsem_trylock(struct rwsem *s);
void rwsem_unlock(struct rwsem *s);

void cond_init(struct cond *c);
void cond_fini(struct cond *c);
void cond_wait(struct cond *c, struct mutex *m);                            /* may wake early: loop */
bool cond_wait_until(struct cond *c, struct mutex *m, uint64_t when_ns);    /* false when plat_now_ns() has passed @when_ns */
void cond_signal(struct cond *c);
void cond_broadcast(struct cond *c);

void plat_relax(unsigned spins);        /* in a spin loop: pause the core, from some spins on yield it */

/* --- threads ---------------------------------------------------------------------------------------------- */
int  thread_create(struct thread *t, const char *name, void (*fn)(void *arg), void *arg);   /* all signals blocked in it */
void thread_join(struct thread *t);
unsigned plat_cpus(void);
#ifdef IOMAP_DEBUG
struct lockdep_stack *plat_lockdep_stack(void);         /* this thread's record of the locks it holds */
#endif

/*
 * Per-thread storage, one key per cache. @exit runs on a thread's own exit with the value it has set, unless tls_fini()
 * came first; the two exclude each other, so @exit never sees an owner that is gone. Inside @exit tls_get() is NULL
 * already. tls_fini() waits for an @exit that runs, so its caller holds no lock; tls_get() and tls_set() wait for nobody.
 */
void  tls_init(struct tls_key *k, void (*exit)(void *owner, void *value), void *owner);
void  tls_fini(struct tls_key *k);
void *tls_get(const struct tls_key *k);                 /* NULL if this thread has set nothing */
int   tls_set(struct tls_key *k, void *value);          /* -ENOMEM */

/* --- time and chance -------------------------------------------------------------------------------------- */
uint64_t plat_now_ns(void);             /* monotonic, never 0 */
void     plat_wall_time(struct timespec *ts);
void     plat_sleep_ns(uint64_t ns);
uint64_t plat_random64(void);

/* --- fork: a word of memory that reads 1 here and 0 in a forked child ------------------------------------- */
const volatile uint32_t *plat_alive_create(void);       /* NULL: no memory */
void plat_alive_destroy(const volatile uint32_t *word);

/* --- memory for folios ------------------------------------------------------------------------------------ */
void *plat_map(size_t bytes, bool huge_pages);          /* anonymous, zeroed, not inherited over fork; NULL: no memory */
void  plat_unmap(void *p, size_t bytes);
void  plat_populate(void *p, size_t bytes);             /* touch it now, so that later faults are cheap */

/* --- files ------------------------------------------------------------------------------------------------ */
struct plat_dio_align { uint32_t mem, offset; };        /* both 0: direct I/O is not possible there */

int     plat_open(const char *path, int oflags, mode_t mode);    /* this and plat_reopen() add O_CLOEXEC */
int     plat_reopen(int fd, int oflags);                /* the same inode again with other flags, through /proc/self/fd */
int     plat_dup(int fd);                               /* another descriptor of the same open file, O_CLOEXEC */
int     plat_close(int fd);
int     plat_fstat(int fd, struct stat *st);
int     plat_stat(const char *path, struct stat *st);
int     plat_fd_flags(int fd);                          /* F_GETFL */
int     plat_dio_align(int fd, struct plat_dio_align *out);     /* statx(STATX_DIOALIGN), else a probe of the file system's habits */
int     plat_blockdev_size(int fd, uint64_t *bytes);
ssize_t plat_pread(int fd, void *buf, size_t len, uint64_t pos);
ssize_t plat_pwrite(int fd, const void *buf, size_t len, uint64_t pos);
int     plat_ftruncate(int fd, uint64_t size);
int     plat_fallocate(int fd, int mode, uint64_t pos, uint64_t len);
int     plat_fdatasync(int fd);
int     plat_fsync(int fd);
int     plat_fsync_dir_of(const char *path);            /* fsync the directory that holds @path */
int     plat_seek(int fd, uint64_t pos, int whence, uint64_t *out);     /* SEEK_DATA, SEEK_HOLE */
int     plat_lock_byte(int fd, uint64_t pos, bool exclusive);   /* OFD lock on one byte, -EBUSY if another holds it */
int     plat_unlock_byte(int fd, uint64_t pos);

/* --- asynchronous direct I/O ------------------------------------------------------------------------------ */
struct plat_aio_op { int fd; bool write; uint64_t pos; const struct iovec *iov; int iovcnt; void *tag; };

int  plat_aio_setup(unsigned depth, plat_aio_t *out);
void plat_aio_destroy(plat_aio_t aio);
/*
 * How many it took, or -errno (-EAGAIN: full); iovecs are copied. An op of no iovecs on a readable fd completes
 * with 0: a way to wake a waiter.
 */
int  plat_aio_submit(plat_aio_t aio, const struct plat_aio_op *ops, unsigned n);
int  plat_aio_wait(plat_aio_t aio, unsigned min, struct plat_aio_event *events, unsigned max);  /* blocks for @min */

#endif
