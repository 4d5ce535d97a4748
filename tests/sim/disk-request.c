/*
 * disk-request.c - reads and writes on their way, and the asynchronous ones among them
 *
 * A request begins when the kernel hears of it, and ends when its result is there to be seen. In between it
 * waits, sleeps its latency, moves its bytes sector by sector, each as it is in memory at that moment, and
 * applies the size:
 *
 *	plat_aio_submit() -> queue -> a worker, which picks any -> event -> plat_aio_wait()
 *	plat_pread(), plat_pwrite()   the same in the caller's thread, without a queue
 *
 * What must never overlap in time is checked as a request begins: two writes of the same bytes, whose order nobody
 * knows, and a direct write beside a buffered one in one page, where the kernel writes back what it had read before.
 *
 * Faults are decided after the latency. A chance that is 0 is drawn all the same, so that switching one kind of
 * fault off leaves the others where they were.
 *
 * Invariants: a request is in file->requests from request_begin() to request_end(). aio->busy = requests in flight
 *             plus events unread, never more than depth, so an event always has room.
 * Locking:    none: threads switch only at sim_point() and where they sleep.
 * Kernel:     fs/aio.c, fs/iomap/direct-io.c. Differs: submission sleeps only for a truncation.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE         /* O_DIRECT */
#endif
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include "bug.h"
#include "disk-file.h"
#include "sched.h"
#include "util.h"

#define IOVS_MAX        1024                    /* the kernel's UIO_MAXIOV */
#define SLOW_OF         64                      /* one request in so many is slow */
#define SLOW_TIMES      20
#define STALE           0xe7                    /* what a direct read leaves behind the end of the file */

/* From plat_aio_setup() to plat_aio_destroy(). */
struct sim_aio {
	unsigned depth;
	unsigned in_flight;
	unsigned busy;                          /* and events unread */
	unsigned nr_events, first_event;
	struct plat_aio_event *events;          /* a ring of @depth */
	struct sim_queue waiters;
};

/* --- one request ------------------------------------------------------------------------------------------ */

static uint64_t end_of(const struct disk_request *r) { return r->pos + r->len; }

/* The kernel's rules for the caller of O_DIRECT and of any write. */
static int check_arguments(const struct disk_request *r)
{
	uint64_t align = disk->params.dio_align, odd = r->pos | r->len;

	if (r->pos > INT64_MAX)
		return -EINVAL;
	if (r->len > INT64_MAX - r->pos)
		return r->write ? -EFBIG : -EINVAL;
	if (!r->direct)
		return 0;
	for (int i = 0; i < r->iovcnt; i++)
		odd |= (uint64_t)(uintptr_t)r->iov[i].iov_base | r->iov[i].iov_len;
	return odd % align ? -EINVAL : 0;
}

static bool meet(const struct disk_request *a, const struct disk_request *b, uint64_t unit)
{
	return round_down(a->pos, unit) < round_up(end_of(b), unit) &&
	       round_down(b->pos, unit) < round_up(end_of(a), unit);
}

static void check_overlap(const struct disk_request *a, const struct disk_request *b)
{
	bool mixed = a->direct != b->direct;

	if (meet(a, b, mixed ? PAGE_BYTES : 1))
		sim_fail("%s at once: f%u %s %llu+%llu, %s %llu+%llu",
			 mixed ? "direct and buffered write of one page" : "two writes of the same bytes",
			 a->file->nr, b->direct ? "direct" : "buffered", (unsigned long long)b->pos,
			 (unsigned long long)b->len, a->direct ? "direct" : "buffered", (unsigned long long)a->pos,
			 (unsigned long long)a->len);
}

void request_begin(struct disk_request *r)
{
	struct disk_file *f = r->file;

	r->len = 0;
	for (int i = 0; i < r->iovcnt; i++)
		r->len += r->iov[i].iov_len;
	disk_enter(f);
	if (r->write && r->len && !check_arguments(r)) {
		r->id = ++disk->last_id;
		for (const struct disk_request *other = f->requests; other; other = other->next)
			if (other->id)
				check_overlap(r, other);
	}
	r->next = f->requests;
	f->requests = r;
	disk->nr_requests++;
	disk->stats.requests++;
	sim_trace("disk: %s%s f%u %llu+%llu begins", r->direct ? "" : "buffered ", r->write ? "write" : "read", f->nr,
		  (unsigned long long)r->pos, (unsigned long long)r->len);
}

void request_end(struct disk_request *r, int64_t result)
{
	struct disk_request **link = &r->file->requests;

	while (*link != r)
		link = &(*link)->next;
	*link = r->next;
	disk->nr_requests--;
	sim_trace("disk: %s%s f%u %llu+%llu -> %lld", r->direct ? "" : "buffered ", r->write ? "write" : "read",
		  r->file->nr, (unsigned long long)r->pos, (unsigned long long)r->len, (long long)result);
	sim_hash(r->len);
	sim_hash((uint64_t)result);
	if (!r->file->requests)
		sim_wake_all(&r->file->turn);
}

/* The page cache answers at once, most of the time. */
static void sleep_latency(const struct disk_request *r)
{
	const struct sim_disk_params *p = &disk->params;
	uint64_t ns = p->latency_ns + sim_below(&disk->timing, p->latency_spread_ns + 1);
	bool slow = sim_chance(&disk->timing, 1, SLOW_OF);
	bool cached = sim_chance(&disk->timing, 3, 4);

	if (slow)
		ns *= SLOW_TIMES;
	if (r->direct || !cached)
		sim_sleep(ns);
}

/* How far the bad range lets @r come; its length if they do not meet. */
static uint64_t good_bytes(const struct disk_request *r, uint64_t len)
{
	const struct sim_disk_params *p = &disk->params;

	if (!p->bad_len || r->file->nr != p->bad_file || !(r->write ? p->bad_writes : p->bad_reads))
		return len;
	if (sim_now() < p->bad_from_ns)
		return len;
	if (r->pos >= p->bad_pos + p->bad_len || r->pos + len <= p->bad_pos)
		return len;
	return p->bad_pos > r->pos ? round_down(p->bad_pos - r->pos, SIM_SECTOR) : 0;
}

/* @len made shorter: whole blocks of direct I/O, any bytes through the page cache; at least one in both. */
static uint64_t shortened(const struct disk_request *r, uint64_t len, uint64_t draw)
{
	uint64_t unit = r->direct ? disk->params.dio_align : disk->params.short_bytes ? 1 : SIM_SECTOR;
	uint64_t units = div_round_up(len, unit);

	return units > 1 ? (1 + draw % (units - 1)) * unit : len;
}

/*
 * What becomes of a request that is @len long as the file is now: 0, or the error it ends with. In *@bytes how
 * much it moves, even if it fails; what fails in the page cache moves nothing.
 */
static int decide(const struct disk_request *r, uint64_t len, uint64_t *bytes)
{
	const struct sim_disk_params *p = &disk->params;
	bool counted = sim_fault(r->write ? SIM_FAULT_WRITE : SIM_FAULT_READ);
	bool failed = sim_chance(&disk->faults, r->write ? p->write_eio : p->read_eio, 1024);
	bool is_short = sim_chance(&disk->faults, p->short_io, 1024);
	uint64_t draw = sim_rng_next(&disk->faults) >> 1;
	uint64_t good = good_bytes(r, len);

	*bytes = 0;
	if (disk_is_dead()) {
		disk->stats.faults++;
		return -EIO;
	}
	if (r->write && disk_no_space(store_missing(&r->file->store, r->pos, len)))
		return -ENOSPC;
	if (counted || failed || good < len) {
		disk->stats.faults++;
		if (r->direct)
			*bytes = draw % (div_round_up(good, SIM_SECTOR) + 1) * SIM_SECTOR;
		*bytes = min_u64(*bytes, good);
		return -EIO;
	}
	*bytes = is_short ? shortened(r, len, draw) : len;
	disk->stats.short_ios += *bytes < len;
	return 0;
}

/* A place in an iovec. */
struct cursor { const struct iovec *v; size_t off; };

/* The next @n bytes of memory, to or from @buf. */
static void move(struct cursor *c, bool to_memory, unsigned char *buf, uint64_t n)
{
	while (n) {
		uint64_t step = min_u64(n, c->v->iov_len - c->off);
		char *memory = (char *)c->v->iov_base + c->off;

		if (to_memory)
			memcpy(memory, buf, step);
		else
			memcpy(buf, memory, step);
		buf += step;
		n -= step;
		c->off += step;
		if (c->off == c->v->iov_len)
			*c = (struct cursor){ c->v + 1, 0 };
	}
}

/*
 * Bytes of @r, sector by sector; between two of them memory and file may change. The size follows a write to the page
 * cache page by page, a direct one only when it is over.
 */
static void transfer(const struct disk_request *r, uint64_t bytes, struct cursor *c)
{
	struct disk_store *s = &r->file->store;
	unsigned char buf[SIM_SECTOR];

	for (uint64_t pos = r->pos, end = pos + bytes; pos < end; ) {
		unsigned n = (unsigned)min_u64(end - pos, SIM_SECTOR - pos % SIM_SECTOR);

		if (r->write) {
			move(c, false, buf, n);
			store_write(s, pos, buf, n, r->id);
		} else {
			store_read(s, pos, buf, n);
			move(c, true, buf, n);
		}
		pos += n;
		disk->stats.sectors++;
		if (r->write && !r->direct && (pos % PAGE_BYTES == 0 || pos == end)) {
			store_mark_data(s, pos - 1, 1);
			store_grow(s, pos, r->id);
		}
		sim_point();
	}
}

static int64_t run_write(struct disk_request *r)
{
	struct disk_store *s = &r->file->store;
	struct cursor c = { r->iov, 0 };
	uint64_t bytes, old = s->size;
	int err = decide(r, r->len, &bytes);

	store_allocate(s, r->pos, bytes);       /* first, so that there is space to the end */
	transfer(r, bytes, &c);
	store_mark_data(s, r->pos, bytes);
	if (err) {
		/* What got behind the end of the file is not part of it, and must not show when it grows. */
		if (r->pos + bytes > s->size)
			store_zero(s, max_u64(r->pos, s->size), r->pos + bytes, r->id);
		return err;
	}
	store_grow(s, r->pos + bytes, r->id);
	disk_grown(r->file, old);
	return (int64_t)bytes;
}

static int64_t run_read(struct disk_request *r)
{
	const struct disk_store *s = &r->file->store;
	uint64_t len = s->size > r->pos ? min_u64(r->len, s->size - r->pos) : 0, bytes;
	struct cursor c = { r->iov, 0 };
	int err = decide(r, len, &bytes);

	transfer(r, bytes, &c);
	if (err)
		return err;
	/* The device gives whole blocks; what stands behind the end of the file is anybody's. */
	if (r->direct && bytes % disk->params.dio_align) {
		unsigned char stale[4096];
		uint64_t rest = round_up(bytes, disk->params.dio_align) - bytes;

		memset(stale, STALE, sizeof(stale));
		move(&c, true, stale, rest);
	}
	return (int64_t)bytes;
}

int64_t request_run(struct disk_request *r)
{
	int ret = check_arguments(r);

	sim_point();
	if (ret || !r->len)
		return ret;
	sleep_latency(r);
	return r->write ? run_write(r) : run_read(r);
}

/* --- asynchronous ones ------------------------------------------------------------------------------------ */

static void post(struct sim_aio *aio, void *tag, int64_t result)
{
	aio->events[(aio->first_event + aio->nr_events++) % aio->depth] =
		(struct plat_aio_event){ .tag = tag, .result = result };
	aio->in_flight--;
	sim_wake_all(&aio->waiters);
}

static void queue_add(struct disk_request *r)
{
	if (disk->nr_queued == disk->queue_room) {
		unsigned room = disk->queue_room ? 2 * disk->queue_room : 64;
		struct disk_request **larger = disk_alloc(room * sizeof(*larger));

		if (disk->nr_queued)
			memcpy(larger, disk->queue, disk->nr_queued * sizeof(*larger));
		disk->queue = larger;
		disk->queue_room = room;
	}
	disk->queue[disk->nr_queued++] = r;
	sim_wake_one(&disk->work);
}

static struct disk_request *queue_take_any(void)
{
	uint64_t i = sim_below(&disk->timing, disk->nr_queued);
	struct disk_request *r = disk->queue[i];

	disk->queue[i] = disk->queue[--disk->nr_queued];
	return r;
}

static void worker(void *arg)
{
	(void)arg;
	for (;;) {
		while (!disk->nr_queued)
			sim_wait(&disk->work, "work for the disk", disk);

		struct disk_request *r = queue_take_any();
		int64_t result = request_run(r);

		request_end(r, result);
		post(r->aio, r->tag, result);
		heap_free(r);
		sim_point();
	}
}

void request_start_workers(void)
{
	for (unsigned i = 0; i < max_u64(disk->params.workers, 1); i++)
		if (!sim_spawn("disk", worker, NULL, true))
			sim_fail("disk: too many threads for its workers");
}

int plat_aio_setup(unsigned depth, plat_aio_t *out)
{
	sim_point();
	if (depth == 0 || depth > INT32_MAX)
		return -EINVAL;
	if (sim_fault(SIM_FAULT_ALLOC))
		return -ENOMEM;

	struct sim_aio *aio = disk_alloc(sizeof(*aio));

	aio->depth = depth;
	aio->events = disk_alloc(depth * sizeof(aio->events[0]));
	*out = aio;
	return 0;
}

void plat_aio_destroy(plat_aio_t aio)
{
	if (!aio)
		return;
	might_sleep();
	sim_point();
	while (aio->in_flight)
		sim_wait(&aio->waiters, "the last request of a context", aio);
	if (!sim_queue_empty(&aio->waiters))
		sim_fail("an aio context ends while somebody waits for it");
	heap_free(aio->events);
	heap_free(aio);
}

/* One op, for which there is room. */
static int submit(struct sim_aio *aio, const struct plat_aio_op *op)
{
	const struct disk_open *o = disk_open_of(op->fd);

	if (!o || !(op->write ? disk_may_write(o) : disk_may_read(o)))
		return -EBADF;
	if (op->iovcnt < 0 || op->iovcnt > IOVS_MAX)
		return -EINVAL;
	aio->busy++;
	aio->in_flight++;
	if (!op->iovcnt) {
		post(aio, op->tag, 0);
		return 0;
	}

	size_t iov_bytes = (size_t)op->iovcnt * sizeof(op->iov[0]);
	struct disk_request *r = disk_alloc(sizeof(*r) + iov_bytes);

	memcpy(r + 1, op->iov, iov_bytes);
	r->file = o->file;
	r->write = op->write;
	r->direct = o->flags & O_DIRECT;
	r->pos = op->pos;
	r->iov = (const struct iovec *)(r + 1);
	r->iovcnt = op->iovcnt;
	r->aio = aio;
	r->tag = op->tag;
	request_begin(r);
	queue_add(r);
	return 0;
}

int plat_aio_submit(plat_aio_t aio, const struct plat_aio_op *ops, unsigned n)
{
	const struct sim_disk_params *p = &disk->params;
	unsigned done;
	int ret = 0;

	might_sleep();
	sim_point();

	bool refuse = sim_chance(&disk->faults, p->eagain, 1024);
	uint64_t most = sim_below(&disk->faults, n);

	for (done = 0; done < n; done++) {
		if ((refuse && done == most) || aio->busy == aio->depth || aio->in_flight >= max_u64(p->queue, 1)) {
			disk->stats.eagains++;
			ret = -EAGAIN;
		} else {
			ret = submit(aio, &ops[done]);
		}
		if (ret)
			break;
		sim_point();
	}
	return done ? (int)done : ret;
}

int plat_aio_wait(plat_aio_t aio, unsigned min, struct plat_aio_event *events, unsigned max)
{
	unsigned n = 0;

	IOMAP_BUG_ON(min > max);
	might_sleep();
	sim_point();
	while (aio->nr_events < min)
		sim_wait(&aio->waiters, "an event of the disk", aio);
	if (disk->params.event_spread_ns)
		sim_sleep(sim_below(&disk->timing, disk->params.event_spread_ns));
	while (n < max && aio->nr_events) {
		events[n++] = aio->events[aio->first_event];
		aio->first_event = (aio->first_event + 1) % aio->depth;
		aio->nr_events--;
		aio->busy--;
	}
	sim_point();
	return (int)n;
}
