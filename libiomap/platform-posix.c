/*
 * platform-posix.c - platform.h on Linux: pthreads, system calls, libaio
 *
 * Mostly one call a function, with two habits: a failure becomes a negative errno, and an interrupted call
 * is made again. Three pieces are more than that.
 *
 * Per-thread storage. A thread has a short list of (key id, value), reached by one thread-local pointer; the
 * key in use last is first. The list is its thread's own, so reading and setting take no lock. One pthread
 * key for the process is there only to be told of a thread's exit; then, under tls_mutex, each value goes to
 * the exit function of its key if the key is still in the list of live keys. tls_fini() takes the key out of
 * that list under the same mutex: after it no exit function runs with this owner, and none is running. Ids
 * are never given twice, so an entry of a dead key is garbage and no more; the next tls_set() of its thread
 * for a new key frees it.
 *
 * Fork. The child has one thread, so liburcu must hold still while the process is copied, and so must
 * tls_mutex. tls_mutex comes first: an exit function may use RCU, while no RCU callback ever waits for
 * tls_mutex. The caches of the parent are dead in the child, their folio memory is not even mapped there; so
 * no key lives on in it.
 *
 * Asynchronous I/O. The control blocks are made once. A block is filled under the lock that took it from the
 * free list, and put back under it before its completion is shown: that is also what orders a submitter's
 * memory before the waiter's.
 *
 * Invariants: an iocb is on the free list or in the kernel. A live key is in live_keys exactly once.
 * Locking:    tls_mutex over all locks that exit functions take; aio->lock is a leaf.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <libaio.h>
#include <limits.h>
#include <linux/fs.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>
#include "atomic.h"
#include "bug.h"
#include "platform.h"
#include "rcu.h"
#include "util.h"

static_assert(sizeof(off_t) == 8, "file positions are 64 bits wide");

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define HUGE_PAGE_BYTES         (UINT64_C(2) << 20)
#define DIO_ALIGN_GUESS         4096    /* right for every disk sold, if more than some need */
#define RELAX_SPINS             64      /* longer than a short critical section, much shorter than a time slice */
#define AIO_BATCH               64      /* blocks a system call, for arrays on the stack */

/* The value of a system call that returns -1 on error, made again while signals interrupt it; -errno on error. */
#define RETRIED(call) \
	({ \
		__typeof__(call) retried_; \
		do \
			retried_ = (call); \
		while (retried_ == -1 && errno == EINTR); \
		retried_ == -1 ? -errno : retried_; \
	})

static struct timespec timespec_of(uint64_t ns)
{
	return (struct timespec){ .tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S) };
}

/* --- locks ------------------------------------------------------------------------------------------------ */

void mutex_init(struct mutex *m, enum lock_rank rank)
{
	int err = pthread_mutex_init(&m->m, NULL);

	IOMAP_BUG_ON(err);
	m->rank = rank;
}

void mutex_fini(struct mutex *m)
{
	int err = pthread_mutex_destroy(&m->m);

	IOMAP_BUG_ON(err);
}

void mutex_lock(struct mutex *m)
{
	lockdep_acquire(m->rank, m, 0, false);
	int err = pthread_mutex_lock(&m->m);

	IOMAP_BUG_ON(err);
}

bool mutex_trylock(struct mutex *m)
{
	if (pthread_mutex_trylock(&m->m))
		return false;
	lockdep_acquire(m->rank, m, 0, true);
	return true;
}

void mutex_unlock(struct mutex *m)
{
	lockdep_release(m);
	int err = pthread_mutex_unlock(&m->m);

	IOMAP_BUG_ON(err);
}

void rwsem_init(struct rwsem *s, enum lock_rank rank)
{
	pthread_rwlockattr_t attr;
	int err = pthread_rwlockattr_init(&attr);

	IOMAP_BUG_ON(err);
	err = pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	IOMAP_BUG_ON(err);
	err = pthread_rwlock_init(&s->l, &attr);
	IOMAP_BUG_ON(err);
	pthread_rwlockattr_destroy(&attr);
	s->rank = rank;
}

void rwsem_fini(struct rwsem *s)
{
	int err = pthread_rwlock_destroy(&s->l);

	IOMAP_BUG_ON(err);
}

void rwsem_lock_shared(struct rwsem *s)
{
	lockdep_acquire(s->rank, s, 0, false);
	int err = pthread_rwlock_rdlock(&s->l);

	IOMAP_BUG_ON(err);
}

bool rwsem_trylock_shared(struct rwsem *s)
{
	if (pthread_rwlock_tryrdlock(&s->l))
		return false;
	lockdep_acquire(s->rank, s, 0, true);
	return true;
}

void rwsem_unlock_shared(struct rwsem *s)
{
	lockdep_release(s);
	int err = pthread_rwlock_unlock(&s->l);

	IOMAP_BUG_ON(err);
}

void rwsem_lock(struct rwsem *s)
{
	lockdep_acquire(s->rank, s, 0, false);
	int err = pthread_rwlock_wrlock(&s->l);

	IOMAP_BUG_ON(err);
}

bool rwsem_trylock(struct rwsem *s)
{
	if (pthread_rwlock_trywrlock(&s->l))
		return false;
	lockdep_acquire(s->rank, s, 0, true);
	return true;
}

void rwsem_unlock(struct rwsem *s)
{
	rwsem_unlock_shared(s);
}

void cond_init(struct cond *c)
{
	pthread_condattr_t attr;
	int err = pthread_condattr_init(&attr);

	IOMAP_BUG_ON(err);
	err = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	IOMAP_BUG_ON(err);
	err = pthread_cond_init(&c->c, &attr);
	IOMAP_BUG_ON(err);
	pthread_condattr_destroy(&attr);
}

void cond_fini(struct cond *c)
{
	int err = pthread_cond_destroy(&c->c);

	IOMAP_BUG_ON(err);
}

void cond_wait(struct cond *c, struct mutex *m)
{
	lockdep_release(m);
	might_sleep();          /* no short lock but the one given up */
	int err = pthread_cond_wait(&c->c, &m->m);

	IOMAP_BUG_ON(err);
	lockdep_acquire(m->rank, m, 0, false);
}

bool cond_wait_until(struct cond *c, struct mutex *m, uint64_t when_ns)
{
	const struct timespec when = timespec_of(when_ns);

	lockdep_release(m);
	might_sleep();
	int err = pthread_cond_timedwait(&c->c, &m->m, &when);

	IOMAP_BUG_ON(err && err != ETIMEDOUT);
	lockdep_acquire(m->rank, m, 0, false);
	return err != ETIMEDOUT;
}

void cond_signal(struct cond *c)
{
	pthread_cond_signal(&c->c);
}

void cond_broadcast(struct cond *c)
{
	pthread_cond_broadcast(&c->c);
}

void plat_relax(unsigned spins)
{
	if (spins >= RELAX_SPINS) {
		sched_yield();
		return;
	}
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* --- threads ---------------------------------------------------------------------------------------------- */

static void *thread_main(void *arg)
{
	struct thread *t = arg;

	pthread_setname_np(pthread_self(), t->name);
	t->fn(t->arg);
	return NULL;
}

int thread_create(struct thread *t, const char *name, void (*fn)(void *arg), void *arg)
{
	sigset_t all, old;

	t->fn = fn;
	t->arg = arg;
	snprintf(t->name, sizeof(t->name), "%s", name);
	sigfillset(&all);
	/* A new thread inherits the mask; blocked before it exists, no signal of the program's ever runs in it. */
	int err = pthread_sigmask(SIG_SETMASK, &all, &old);

	if (err)
		return -err;
	err = pthread_create(&t->id, NULL, thread_main, t);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return -err;
}

void thread_join(struct thread *t)
{
	might_sleep();
	int err = pthread_join(t->id, NULL);

	IOMAP_BUG_ON(err);
}

unsigned plat_cpus(void)
{
	cpu_set_t set;

	if (!sched_getaffinity(0, sizeof(set), &set))
		return (unsigned)CPU_COUNT(&set);
	long n = sysconf(_SC_NPROCESSORS_ONLN);         /* more processors than fit into the set */

	return n > 0 ? (unsigned)n : 1;
}

#ifdef IOMAP_DEBUG
struct lockdep_stack *plat_lockdep_stack(void)
{
	static _Thread_local struct lockdep_stack stack;

	return &stack;
}
#endif

/* --- per-thread storage ----------------------------------------------------------------------------------- */

/*
 * What one thread has set for one key: from the first tls_set() to the thread's exit, or to a tls_set() after
 * tls_fini().
 */
struct tls_entry {
	struct tls_entry *next;
	uint64_t id;
	void *value;
};

static pthread_mutex_t tls_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct tls_key *live_keys;               /* under tls_mutex */
static _Atomic uint64_t last_key_id;
static pthread_once_t exit_key_once = PTHREAD_ONCE_INIT;
static pthread_key_t exit_key;                  /* set once; its value in a thread only has to be not NULL */
static bool exit_key_works;                     /* set once */

/*
 * One word of static TLS: fits the reserve for libraries loaded late, and costs one instruction to reach. Not with the stack of
 * lockdep beside it: all of a library's TLS is static as soon as one variable is, and that stack is larger than the reserve.
 */
#ifdef IOMAP_DEBUG
#define TLS_STATIC
#else
#define TLS_STATIC __attribute__((tls_model("initial-exec")))
#endif
static _Thread_local struct tls_entry *my_entries TLS_STATIC;

static struct tls_key *find_live(uint64_t id)
{
	struct tls_key *k = live_keys;

	while (k && k->id != id)
		k = k->next;
	return k;
}

/*
 * On a thread's exit. The list is empty while exit functions run; should one of them, or a later destructor, set a value
 * again, pthread calls here once more.
 */
static void hand_back_values(void *unused)
{
	struct tls_entry *e = my_entries, *next;

	(void)unused;
	my_entries = NULL;
	pthread_mutex_lock(&tls_mutex);
	for (; e; e = next) {
		const struct tls_key *k = find_live(e->id);

		next = e->next;
		if (k && k->exit && e->value)
			k->exit(k->owner, e->value);
		free(e);
	}
	pthread_mutex_unlock(&tls_mutex);
}

static void make_exit_key(void)
{
	exit_key_works = !pthread_key_create(&exit_key, hand_back_values);
}

void tls_init(struct tls_key *k, void (*exit)(void *owner, void *value), void *owner)
{
	pthread_once(&exit_key_once, make_exit_key);
	k->id = add_relaxed(&last_key_id, 1) + 1;       /* relaxed: only has to be unique */
	k->exit = exit;
	k->owner = owner;
	pthread_mutex_lock(&tls_mutex);
	k->next = live_keys;
	live_keys = k;
	pthread_mutex_unlock(&tls_mutex);
}

void tls_fini(struct tls_key *k)
{
	lockdep_assert_none_held();                     /* an exit function may want it and runs under tls_mutex */
	pthread_mutex_lock(&tls_mutex);
	struct tls_key **link = &live_keys;

	while (*link && *link != k)
		link = &(*link)->next;
	if (*link)                                      /* else it was made before a fork, by the parent */
		*link = k->next;
	pthread_mutex_unlock(&tls_mutex);
}

/* This thread's entry for @k, moved to the front; NULL if it has none. */
static struct tls_entry *my_entry(const struct tls_key *k)
{
	struct tls_entry *first = my_entries;

	if (likely(first && first->id == k->id))
		return first;
	for (struct tls_entry **link = &my_entries, *e; (e = *link); link = &e->next) {
		if (e->id == k->id) {
			*link = e->next;
			e->next = first;
			my_entries = e;
			return e;
		}
	}
	return NULL;
}

void *tls_get(const struct tls_key *k)
{
	const struct tls_entry *e = my_entry(k);

	return e ? e->value : NULL;
}

/*
 * Only if nobody is in the way: the caller may hold a lock that an exit function waits for. The next new entry
 * tries again.
 */
static void free_entries_of_dead_keys(void)
{
	if (pthread_mutex_trylock(&tls_mutex))
		return;
	for (struct tls_entry **link = &my_entries, *e; (e = *link); ) {
		if (find_live(e->id)) {
			link = &e->next;
		} else {
			*link = e->next;
			free(e);
		}
	}
	pthread_mutex_unlock(&tls_mutex);
}

int tls_set(struct tls_key *k, void *value)
{
	struct tls_entry *e = my_entry(k);

	if (e) {
		e->value = value;
		return 0;
	}
	if (!value)
		return 0;
	free_entries_of_dead_keys();
	e = malloc(sizeof(*e));
	if (!e)
		return -ENOMEM;
	if (!exit_key_works || pthread_setspecific(exit_key, e)) {
		free(e);
		return -ENOMEM;
	}
	*e = (struct tls_entry){ .next = my_entries, .id = k->id, .value = value };
	my_entries = e;
	return 0;
}

/* --- time and chance -------------------------------------------------------------------------------------- */

uint64_t plat_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	uint64_t ns = (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;

	return ns ? ns : 1;
}

void plat_wall_time(struct timespec *ts)
{
	clock_gettime(CLOCK_REALTIME, ts);
}

void plat_sleep_ns(uint64_t ns)
{
	uint64_t now = plat_now_ns();
	const struct timespec until = timespec_of(ns > INT64_MAX - now ? INT64_MAX : now + ns);

	might_sleep();
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
		;
}

uint64_t plat_random64(void)
{
	uint64_t r;

	if (RETRIED(getrandom(&r, sizeof(r), 0)) == (ssize_t)sizeof(r))
		return r;
	/* Forbidden by a sandbox. Chance is for spreading load here, never for secrets. */
	r = plat_now_ns() ^ (uint64_t)(uintptr_t)&r;
	r = (r ^ (r >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	r = (r ^ (r >> 27)) * UINT64_C(0x94d049bb133111eb);
	return r ^ (r >> 31);
}

/* --- fork ------------------------------------------------------------------------------------------------- */

static void before_fork(void)
{
	pthread_mutex_lock(&tls_mutex);
	rcu_fork_prepare();
}

static void after_fork_in_parent(void)
{
	rcu_fork_parent();
	pthread_mutex_unlock(&tls_mutex);
}

static void after_fork_in_child(void)
{
	rcu_fork_child();
	live_keys = NULL;
	pthread_mutex_unlock(&tls_mutex);
}

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static bool fork_handled;                       /* set once */

static void handle_fork(void)
{
	fork_handled = !pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

const volatile uint32_t *plat_alive_create(void)
{
	pthread_once(&fork_once, handle_fork);
	if (!fork_handled)
		return NULL;
	uint32_t *word = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (word == MAP_FAILED)
		return NULL;
	if (madvise(word, PAGE_BYTES, MADV_WIPEONFORK)) {
		munmap(word, PAGE_BYTES);
		return NULL;
	}
	*word = 1;
	return word;
}

void plat_alive_destroy(const volatile uint32_t *word)
{
	if (word)
		munmap((void *)(uintptr_t)word, PAGE_BYTES);
}

/* --- memory for folios ------------------------------------------------------------------------------------ */

/* Huge pages need their alignment: maps that much more and gives the ends back. */
void *plat_map(size_t bytes, bool huge_pages)
{
	size_t slack = huge_pages && bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : 0;

	if (bytes > SIZE_MAX / 2)
		return NULL;
	bytes = round_up(bytes, PAGE_BYTES);
	char *p = mmap(NULL, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	if (slack) {
		size_t front = round_up((uintptr_t)p, HUGE_PAGE_BYTES) - (uintptr_t)p;

		if (front)
			munmap(p, front);
		p += front;
		munmap(p + bytes, slack - front);
	}
#ifndef __SANITIZE_ADDRESS__      /* its shadow would stay poisoned in a child for whatever comes to lie there */
	if (madvise(p, bytes, MADV_DONTFORK)) {
		munmap(p, bytes);
		return NULL;
	}
#endif
	if (huge_pages)
		(void)madvise(p, bytes, MADV_HUGEPAGE); /* a wish; kernels without them say no */
	return p;
}

void plat_unmap(void *p, size_t bytes)
{
	if (p)
		munmap(p, round_up(bytes, PAGE_BYTES));
}

void plat_populate(void *p, size_t bytes)
{
	might_sleep();
	(void)RETRIED(madvise(p, bytes, MADV_POPULATE_WRITE));  /* refused or unknown: first use pays instead */
}

/* --- files ------------------------------------------------------------------------------------------------ */

int plat_open(const char *path, int oflags, mode_t mode)
{
	might_sleep();
	return RETRIED(open(path, oflags | O_CLOEXEC, mode));
}

int plat_reopen(int fd, int oflags)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return plat_open(path, oflags, 0);
}

int plat_dup(int fd)
{
	return RETRIED(fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

/* The descriptor is gone even when the call was interrupted, so this one is never made again. */
int plat_close(int fd)
{
	might_sleep();
	return close(fd) && errno != EINTR ? -errno : 0;
}

int plat_fstat(int fd, struct stat *st)
{
	might_sleep();
	return RETRIED(fstat(fd, st));
}

int plat_stat(const char *path, struct stat *st)
{
	might_sleep();
	return RETRIED(stat(path, st));
}

int plat_fd_flags(int fd)
{
	return RETRIED(fcntl(fd, F_GETFL));
}

/* Whether the file system opens the file of @fd for direct I/O. */
static bool opens_direct(int fd)
{
	int flags = plat_fd_flags(fd);

	if (flags >= 0 && (flags & O_DIRECT))
		return true;
	int probe = plat_reopen(fd, (flags >= 0 ? flags & O_ACCMODE : O_RDONLY) | O_DIRECT);

	if (probe < 0)
		return false;
	plat_close(probe);
	return true;
}

int plat_dio_align(int fd, struct plat_dio_align *out)
{
	struct stat st;
	int sector, ret;

	might_sleep();
	*out = (struct plat_dio_align){ 0, 0 };
#ifdef STATX_DIOALIGN
	struct statx stx;

	ret = RETRIED(statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx));
	if (!ret && (stx.stx_mask & STATX_DIOALIGN)) {
		out->mem = stx.stx_dio_mem_align;
		out->offset = stx.stx_dio_offset_align;
		return 0;
	}
#endif
	/* An older kernel, or a file system that does not say. */
	ret = plat_fstat(fd, &st);
	if (ret)
		return ret;
	if (S_ISBLK(st.st_mode)) {
		ret = RETRIED(ioctl(fd, BLKSSZGET, &sector));
		if (ret < 0)
			return ret;
		*out = (struct plat_dio_align){ (uint32_t)sector, (uint32_t)sector };
	} else if (S_ISREG(st.st_mode) && opens_direct(fd)) {
		*out = (struct plat_dio_align){ DIO_ALIGN_GUESS, DIO_ALIGN_GUESS };
	}
	return 0;
}

int plat_blockdev_size(int fd, uint64_t *bytes)
{
	might_sleep();
	return RETRIED(ioctl(fd, BLKGETSIZE64, bytes));
}

ssize_t plat_pread(int fd, void *buf, size_t len, uint64_t pos)
{
	might_sleep();
	return RETRIED(pread(fd, buf, len, (off_t)pos));
}

ssize_t plat_pwrite(int fd, const void *buf, size_t len, uint64_t pos)
{
	might_sleep();
	return RETRIED(pwrite(fd, buf, len, (off_t)pos));
}

int plat_ftruncate(int fd, uint64_t size)
{
	might_sleep();
	return RETRIED(ftruncate(fd, (off_t)size));
}

int plat_fallocate(int fd, int mode, uint64_t pos, uint64_t len)
{
	might_sleep();
	return RETRIED(fallocate(fd, mode, (off_t)pos, (off_t)len));
}

int plat_fdatasync(int fd)
{
	might_sleep();
	return RETRIED(fdatasync(fd));
}

int plat_fsync(int fd)
{
	might_sleep();
	return RETRIED(fsync(fd));
}

int plat_fsync_dir_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	size_t len = slash ? (size_t)(slash - path) + 1 : 0;    /* with the slash: the root is a directory as well */
	char dir[PATH_MAX];

	if (len >= sizeof(dir))
		return -ENAMETOOLONG;
	memcpy(dir, path, len);
	dir[len] = '\0';
	int fd = plat_open(len ? dir : ".", O_RDONLY | O_DIRECTORY, 0);

	if (fd < 0)
		return fd;
	int ret = plat_fsync(fd);

	plat_close(fd);
	return ret;
}

int plat_seek(int fd, uint64_t pos, int whence, uint64_t *out)
{
	might_sleep();
	off_t ret = RETRIED(lseek(fd, (off_t)pos, whence));

	if (ret < 0)
		return (int)ret;
	*out = (uint64_t)ret;
	return 0;
}

static int set_byte_lock(int fd, uint64_t pos, short type)
{
	struct flock fl = { .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)pos, .l_len = 1 };

	might_sleep();
	int ret = RETRIED(fcntl(fd, F_OFD_SETLK, &fl));

	return ret == -EAGAIN || ret == -EACCES ? -EBUSY : ret;
}

int plat_lock_byte(int fd, uint64_t pos, bool exclusive)
{
	return set_byte_lock(fd, pos, exclusive ? F_WRLCK : F_RDLCK);
}

int plat_unlock_byte(int fd, uint64_t pos)
{
	return set_byte_lock(fd, pos, F_UNLCK);
}

/* --- asynchronous direct I/O ------------------------------------------------------------------------------ */

/* From plat_aio_setup() to plat_aio_destroy(). */
struct plat_aio {
	io_context_t ctx;
	struct mutex lock;
	unsigned nr_free;               /* under lock, as free[] */
	struct iocb **free;
	struct iocb iocbs[];
};

int plat_aio_setup(unsigned depth, plat_aio_t *out)
{
	if (depth == 0 || depth > INT_MAX)
		return -EINVAL;
	struct plat_aio *aio = calloc(1, sizeof(*aio) + depth * sizeof(aio->iocbs[0]));

	if (!aio)
		return -ENOMEM;
	int ret = -ENOMEM;

	aio->free = calloc(depth, sizeof(aio->free[0]));
	if (!aio->free)
		goto free_aio;
	ret = io_setup((int)depth, &aio->ctx);
	if (ret < 0)
		goto free_list;
	mutex_init(&aio->lock, LOCK_LEAF);
	while (aio->nr_free < depth) {
		aio->free[aio->nr_free] = &aio->iocbs[aio->nr_free];
		aio->nr_free++;
	}
	*out = aio;
	return 0;

free_list:
	free(aio->free);
free_aio:
	free(aio);
	return ret;
}

void plat_aio_destroy(plat_aio_t aio)
{
	if (!aio)
		return;
	might_sleep();
	io_destroy(aio->ctx);           /* waits for what is in flight */
	mutex_fini(&aio->lock);
	free(aio->free);
	free(aio);
}

/* Fills blocks for as many of @ops as there are free ones, at most AIO_BATCH. */
static unsigned take_iocbs(struct plat_aio *aio, const struct plat_aio_op *ops, unsigned n, struct iocb **taken)
{
	unsigned i;

	mutex_lock(&aio->lock);
	n = (unsigned)min_u64(min_u64(n, aio->nr_free), AIO_BATCH);
	for (i = 0; i < n; i++) {
		struct iocb *cb = aio->free[--aio->nr_free];

		if (ops[i].write)
			io_prep_pwritev(cb, ops[i].fd, ops[i].iov, ops[i].iovcnt, (long long)ops[i].pos);
		else
			io_prep_preadv(cb, ops[i].fd, ops[i].iov, ops[i].iovcnt, (long long)ops[i].pos);
		cb->data = ops[i].tag;
		taken[i] = cb;
	}
	mutex_unlock(&aio->lock);
	return n;
}

static void give_iocbs(struct plat_aio *aio, struct iocb **taken, unsigned n)
{
	mutex_lock(&aio->lock);
	for (unsigned i = 0; i < n; i++)
		aio->free[aio->nr_free++] = taken[i];
	mutex_unlock(&aio->lock);
}

int plat_aio_submit(plat_aio_t aio, const struct plat_aio_op *ops, unsigned n)
{
	struct iocb *batch[AIO_BATCH];
	unsigned done = 0;

	might_sleep();
	while (done < n) {
		unsigned taken = take_iocbs(aio, ops + done, n - done, batch);
		int ret = -EAGAIN;

		if (taken) {
			do
				ret = io_submit(aio->ctx, taken, batch);
			while (ret == -EINTR);
		}
		unsigned submitted = ret > 0 ? (unsigned)ret : 0;

		done += submitted;
		if (submitted == taken && taken)
			continue;
		give_iocbs(aio, batch + submitted, taken - submitted);
		if (done == 0)
			return ret < 0 ? ret : -EAGAIN;
		break;
	}
	return (int)done;
}

int plat_aio_wait(plat_aio_t aio, unsigned min, struct plat_aio_event *events, unsigned max)
{
	struct io_event got[AIO_BATCH];
	struct iocb *finished[AIO_BATCH];
	unsigned done = 0;

	IOMAP_BUG_ON(min > max);
	might_sleep();
	while (done < max) {
		long room = (long)min_u64(max - done, AIO_BATCH);
		long need = done < min ? (long)min_u64(min - done, AIO_BATCH) : 0;
		int ret = io_getevents(aio->ctx, need, room, got, NULL);

		if (ret == -EINTR)
			continue;
		if (ret < 0)
			return done ? (int)done : ret;
		for (int i = 0; i < ret; i++)
			finished[i] = got[i].obj;
		give_iocbs(aio, finished, (unsigned)ret);
		for (int i = 0; i < ret; i++)
			events[done++] = (struct plat_aio_event){ .tag = got[i].data, .result = (int64_t)(long)got[i].res };
		if (done >= min && ret < room)
			break;
	}
	return (int)done;
}
