/*
 * cases.h - what several of the programs stress/cases-*.c use
 *
 * Those tests are bugs that others reported, as short sequences with the exact right result. The comment above each names its case.
 */
#ifndef TESTS_CASES_H
#define TESTS_CASES_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "call.h"
#include "rig.h"

#define BOTH_RULES(policy) \
	for (enum iomap_error_policy policy = IOMAP_ERROR_KEEP_DIRTY; policy <= IOMAP_ERROR_DROP; policy++)

static inline void start_writeback(struct t_rig *rig)
{
	CHECK_EQ(iomap_fadvise(rig->file, 0, 0, POSIX_FADV_DONTNEED), 0);
}

static inline bool nothing_in_flight(struct t_rig *rig)
{
	return t_rig_stat(rig).writeback_bytes == 0;
}

static inline void fsync_and_drop(struct t_rig *rig)
{
	CHECK_EQ(iomap_fsync(rig->file), 0);
	CHECK_EQ(iomap_cache_drop(rig->cache), 0);
}

static inline off_t fstat_size(struct iomap_file *file)
{
	struct stat st;

	CHECK_EQ(iomap_fstat(file, &st), 0);
	return st.st_size;
}

static inline unsigned rounds(unsigned in_check, unsigned in_check_long)
{
	return t_run_is_long() ? in_check_long : in_check;
}

/* End of a loop that is to run for so long. */
static inline uint64_t until(unsigned ms_in_check, unsigned ms_in_check_long)
{
	return t_run_now_ns() + 1000000ULL * rounds(ms_in_check, ms_in_check_long);
}

static inline int punch(struct iomap_file *file, uint64_t pos, uint64_t len)
{
	return iomap_fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)pos, (off_t)len);
}

static inline int zero(struct iomap_file *file, uint64_t pos, uint64_t len)
{
	return iomap_fallocate(file, FALLOC_FL_ZERO_RANGE, (off_t)pos, (off_t)len);
}

static inline int prealloc(struct iomap_file *file, uint64_t pos, uint64_t len)
{
	return iomap_fallocate(file, 0, (off_t)pos, (off_t)len);
}

#define WRITE_AND_WAIT (IOMAP_SYNC_WRITE | IOMAP_SYNC_WAIT_AFTER)

struct loop {
	struct iomap_file *file;
	struct iomap_cache *cache;
	_Atomic bool *stop;
	uint64_t seed;
	_Atomic uint64_t turns;
	_Atomic uint64_t bad;
	off_t pos;
	size_t len;
	_Atomic uint64_t *shared;
};

/* Looks at a cache all the time. */
struct sampler {
	struct iomap_cache *cache;
	_Atomic bool stop;
	uint64_t samples, dirty_most, cached_most;
	pthread_t thread;
};

static inline void *sample(void *arg)
{
	struct sampler *s = arg;

	while (!atomic_load(&s->stop)) {
		struct iomap_cache_stat st;

		if (iomap_cache_stat(s->cache, &st, sizeof(st)) != 0)
			break;
		if (st.dirty_bytes + st.writeback_bytes > s->dirty_most)
			s->dirty_most = st.dirty_bytes + st.writeback_bytes;
		if (st.cached_bytes > s->cached_most)
			s->cached_most = st.cached_bytes;
		s->samples++;
		t_run_nap();
	}
	return NULL;
}

static inline void sampler_start(struct sampler *s, struct iomap_cache *cache)
{
	memset(s, 0, sizeof(*s));
	s->cache = cache;
	CHECK_EQ(pthread_create(&s->thread, NULL, sample, s), 0);
}

static inline void sampler_stop(struct sampler *s)
{
	atomic_store(&s->stop, true);
	pthread_join(s->thread, NULL);
}

static inline uint64_t cached(struct t_rig *rig)
{
	return t_rig_stat(rig).cached_bytes;
}

#endif
