/*
 * cases-engine.c - bugs that others reported, as short sequences with the exact right result: an engine around the cache
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "call.h"
#include "file.h"
#include "flusher.h"
#include "rig.h"

/* --- a device that uses the cache --------------------------------------------------------------------------------- */

/* Memory; for each JOURNAL_EACH bytes written to it, and for each flush, it writes 4096 bytes to a journal, which is another file of its cache. */
enum { JOURNAL_EACH = 65536 };

struct journaled {
	unsigned char *store;
	uint64_t written, journaled;
	struct iomap_cache *cache;
	struct iomap_file *journal;
	unsigned bad, records, flushes, by_flusher;
	uint64_t paused;                /* pauses of whoever wrote the journal, while it did */
	pthread_mutex_t lock;
};

static void write_record(struct journaled *j)
{
	struct task *task = cache_task(j->cache);
	uint64_t before = load_relaxed(&task->stat[TASK_PAUSES]) + load_relaxed(&task->stat[TASK_THROTTLED_NS]);
	unsigned char record[4096];

	memset(record, 'J', sizeof(record));
	j->bad += iomap_pwrite(j->journal, record, sizeof(record), (off_t)j->records * 4096) != 4096;
	j->records++;
	j->by_flusher += task->internal;
	j->paused += load_relaxed(&task->stat[TASK_PAUSES]) + load_relaxed(&task->stat[TASK_THROTTLED_NS]) - before;
}

static int journaled_submit(struct iomap_device *device, struct iomap_request **reqs, unsigned n)
{
	struct journaled *j = iomap_device_priv(device);

	for (unsigned i = 0; i < n; i++) {
		uint64_t pos = reqs[i]->pos, done = 0;

		pthread_mutex_lock(&j->lock);
		for (int k = 0; k < reqs[i]->iovcnt; k++) {
			const struct iovec *v = &reqs[i]->iov[k];

			if (reqs[i]->op == IOMAP_REQ_WRITE)
				memcpy(j->store + pos + done, v->iov_base, v->iov_len);
			else
				memcpy(v->iov_base, j->store + pos + done, v->iov_len);
			done += v->iov_len;
		}
		if (reqs[i]->op == IOMAP_REQ_WRITE) {
			j->written += done;
			for (; j->journaled + JOURNAL_EACH <= j->written; j->journaled += JOURNAL_EACH)
				write_record(j);
		}
		pthread_mutex_unlock(&j->lock);
		reqs[i]->result = (int64_t)done;
		reqs[i]->done(reqs[i]);
	}
	return (int)n;
}

static int journaled_flush(struct iomap_device *device, struct iomap_request *req)
{
	struct journaled *j = iomap_device_priv(device);

	pthread_mutex_lock(&j->lock);
	write_record(j);
	j->flushes++;
	pthread_mutex_unlock(&j->lock);
	req->result = 0;
	req->done(req);
	return 0;
}

static int any_size(struct iomap_device *device, uint64_t size)
{
	(void)device;
	(void)size;
	return 0;
}

static void nothing_to_destroy(struct iomap_device *device)
{
	(void)device;
}

static int write_bytes(struct iomap_file *file, int byte, uint64_t bytes)
{
	struct t_call call;
	int64_t n;

	t_call_write(&call, file, byte, bytes, 0);
	n = t_call_wait(&call);
	t_call_free(&call);
	return n == (int64_t)bytes ? 0 : -1;
}

/* C34 */
static void a_device_that_writes_through_its_own_cache_is_not_throttled(void)
{
	static const struct iomap_device_ops ops = {
		.submit = journaled_submit, .flush = journaled_flush, .set_size = any_size, .destroy = nothing_to_destroy,
	};
	struct iomap_device_info info = { .block = 512 };
	struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;
	struct journaled j = { .store = calloc(1, 8 * MIB), .lock = PTHREAD_MUTEX_INITIALIZER };
	struct iomap_device *device;
	struct t_call write, sync;
	struct iomap_file *data;
	struct t_rig rig;

	t_rig_init(&rig);
	rig.params.dirty_bytes = MIB;
	rig.params.dirty_background_bytes = MIB / 2;
	t_rig_up(&rig);
	CHECK_EQ(iomap_device_create(&ops, &j, &info, &device), 0);
	j.cache = rig.cache;
	j.journal = rig.file;
	params.device = device;
	CHECK_EQ(iomap_open_with(rig.cache, NULL, O_RDWR, 0, &params, &data), 0);
	t_call_write(&write, data, 'A', 8 * MIB, 0);
	CHECK(T_WAIT(t_call_done(&write), 30000));
	CHECK_EQ(t_call_wait(&write), (int64_t)(8 * MIB));
	t_call_fsync(&sync, data);
	CHECK(T_WAIT(t_call_done(&sync), 30000));
	CHECK_EQ(t_call_wait(&sync), 0);
	t_call_free(&write);
	t_call_free(&sync);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	CHECK_EQ(j.bad, 0);
	CHECK_EQ(j.paused, 0);
	CHECK_GE(j.by_flusher, 1);
	CHECK_EQ(j.records, 8 * MIB / JOURNAL_EACH + j.flushes);
	CHECK_GE(j.flushes, 1);
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 0);
	t_rig_expect_stored(&rig, 0, j.records * 4096, 'J');
	CHECK_BYTES(j.store, 8 * MIB, 'A');
	/* So it is for a caller of fsync, far above the limit, with a journal whose device stands still: nobody would clean it. */
	flusher_stop(data->inode->wb);
	CHECK_EQ(iomap_cache_set(rig.cache, IOMAP_TUNE_DIRTY_BYTES, 16 * MIB), 0);
	CHECK_EQ(write_bytes(data, 'B', 8 * MIB), 0);
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	CHECK_EQ(iomap_fadvise(rig.file, 0, 0, POSIX_FADV_DONTNEED), 0);
	CHECK_EQ(iomap_cache_set(rig.cache, IOMAP_TUNE_DIRTY_BYTES, MIB), 0);
	t_call_fsync(&sync, data);
	CHECK(T_WAIT(t_call_done(&sync), 10000));
	CHECK_EQ(t_call_wait(&sync), 0);
	t_call_free(&sync);
	CHECK_EQ(j.bad, 0);
	CHECK_EQ(j.paused, 0);
	CHECK_EQ(j.records, 16 * MIB / JOURNAL_EACH + j.flushes);
	t_hold_release(rig.hold);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	CHECK_EQ(iomap_close(data), 0);
	CHECK_EQ(iomap_device_close(device), 0);
	t_rig_down(&rig);
	free(j.store);
}

/* --- one call above 2 GiB -------------------------------------------------------------------------------------------- */

#define HUGE_BYTES (3 * 1024 * MIB)

static int as_flush(struct iomap_device *device, struct iomap_request *req)
{
	(void)device;
	req->result = 0;
	req->done(req);
	return 0;
}

/* A device that keeps nothing: what is written must be As, and so is all that it holds. */
static _Atomic uint64_t as_written, as_wrong;

static int as_submit(struct iomap_device *device, struct iomap_request **reqs, unsigned n)
{
	(void)device;
	for (unsigned i = 0; i < n; i++) {
		int64_t done = 0;

		for (int k = 0; k < reqs[i]->iovcnt; k++) {
			const struct iovec *v = &reqs[i]->iov[k];

			if (reqs[i]->op == IOMAP_REQ_READ)
				memset(v->iov_base, 'A', v->iov_len);
			else if (t_run_bytes_differ(v->iov_base, v->iov_len, 'A') >= 0)
				as_wrong++;
			done += (int64_t)v->iov_len;
		}
		if (reqs[i]->op == IOMAP_REQ_WRITE)
			as_written += (uint64_t)done;
		reqs[i]->result = done;
		reqs[i]->done(reqs[i]);
	}
	return (int)n;
}

/* So many bytes of address space on one piece of 2 MiB of memory. */
static unsigned char *map_over_and_over(uint64_t bytes)
{
	int fd = memfd_create("piece", 0);
	unsigned char *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	CHECK(fd >= 0 && at != MAP_FAILED);
	CHECK_EQ(ftruncate(fd, 2 * MIB), 0);
	for (uint64_t off = 0; off < bytes; off += 2 * MIB)
		CHECK(mmap(at + off, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED);
	close(fd);
	return at;
}

/* C93; Linux stops a call at 2147479552 bytes, here it goes all the way */
static void one_transfer_above_2_gib(void)
{
	static const uint64_t places[] = { 2147479551, 2147479552, 2147483647, 2147483648, 3221225471 };
	static const struct iomap_device_ops ops = {
		.submit = as_submit, .flush = as_flush, .set_size = any_size, .destroy = nothing_to_destroy,
	};
	struct iomap_device_info info = { .block = 512 };
	struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;
	struct iomap_cache_params cache_params = IOMAP_CACHE_PARAMS_INIT;
	struct iomap_cache *cache;
	struct iomap_file *file;
	unsigned char *buf;

	if (t_run_slow() > 1 && !t_run_is_long())
		t_run_skip("3 GiB take too long under a sanitizer");
	buf = map_over_and_over(HUGE_BYTES);
	memset(buf, 'A', 2 * MIB);
	cache_params.dirty_bytes = 64 * MIB;
	CHECK_EQ(iomap_cache_create(&cache, &cache_params), 0);
	CHECK_EQ(iomap_device_create(&ops, NULL, &info, &params.device), 0);
	CHECK_EQ(iomap_open_with(cache, NULL, O_RDWR, 0, &params, &file), 0);
	CHECK_EQ(iomap_pwrite(file, buf, HUGE_BYTES, 0), (ssize_t)HUGE_BYTES);
	CHECK_EQ(iomap_size(file), (off_t)HUGE_BYTES);
	CHECK_EQ(iomap_fsync(file), 0);
	CHECK_EQ(as_written, HUGE_BYTES);
	CHECK_EQ(as_wrong, 0);
	CHECK(t_drops_all(cache));
	memset(buf, 0xEE, 2 * MIB);
	CHECK_EQ(iomap_pread(file, buf, HUGE_BYTES, 0), (ssize_t)HUGE_BYTES);
	CHECK_BYTES(buf, 2 * MIB, 'A');
	for (unsigned i = 0; i < 5; i++) {
		CHECK_EQ(iomap_pread(file, buf, 1, (off_t)places[i]), 1);
		CHECK_EQ(buf[0], 'A');
		buf[0] = 0;
	}
	CHECK_EQ(iomap_pread(file, buf, 1, (off_t)HUGE_BYTES), 0);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
	CHECK_EQ(iomap_device_close(params.device), 0);
	munmap(buf, HUGE_BYTES);
}

static const struct t_run_case cases[] = {
	T_RUN_FOR(a_device_that_writes_through_its_own_cache_is_not_throttled, 90),
	T_RUN_FOR(one_transfer_above_2_gib, 120),
};

int main(int argc, char **argv)
{
	return t_run_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
