/*
 * device-mem.c - a device in memory, as slow and as faulty as a test wants it
 *
 * Contents are 64 KiB chunks in a hash table, made where something is written; what has no chunk reads as zeros,
 * so offsets up to 2^63 cost nothing. The table is cut into shards, each with its lock, and bytes are copied
 * under the lock of their chunk's shard: reads and writes of one chunk exclude each other, those of different
 * chunks mostly run in parallel.
 *
 * Each chunk remembers which of its 512 bytes were written. What was never, or was punched or zeroed since, is a hole to seek().
 *
 * A request that nothing delays is carried out and completed inside submit(). Any other is given the time at
 * which it is due and waits in a heap ordered by that time; one timer thread carries it out then, not before, so
 * that memory which changes while it is in flight shows in what is read or written, as on real hardware. What
 * the fail hook said is kept with the request: the hook is asked once, when the request arrives.
 *
 * Two clocks say when a request may start: each is the time until which the device is busy with what it has, one
 * counting requests (iops), one bytes. They run ahead of now by what is queued.
 *
 * Invariants: bytes past the size are zero (unless poked), so that growing needs no work; inflight <=
 *             queue_depth.
 * Locking:    shard->lock for its chunks; m->lock for heap, clocks, inflight. Never two at once; none over
 *             done() or the hook.
 * Kernel:     drivers/block/null_blk, brd. Differs: has a size that changes, like a file.
 */
#include <errno.h>
#include <linux/falloc.h>
#include <string.h>
#include <unistd.h>
#include "atomic.h"
#include "bug.h"
#include "device.h"
#include "device-mem.h"
#include "mem.h"
#include "params.h"
#include "util.h"

#define CHUNK_SHIFT     16
#define CHUNK_BYTES     (UINT64_C(1) << CHUNK_SHIFT)
#define UNIT_BYTES      UINT64_C(512)
#define CHUNK_UNITS     (CHUNK_BYTES / UNIT_BYTES)
#define SHARD_BITS      6
#define NR_SHARDS       (1U << SHARD_BITS)
#define BUCKET_BITS     6
#define NR_BUCKETS      (1U << BUCKET_BITS)
#define DEPTH_DEFAULT   128
#define DEPTH_MAX       (1U << 20)
#define FLUSH_DEPTH     64
#define TIMER_BATCH     32
#define END_MAX         (UINT64_C(1) << 63)

/* From its first written byte until it is cut off or the device goes; under its shard's lock. */
struct chunk {
	struct chunk *next;
	uint64_t index;
	uint64_t data[CHUNK_UNITS / 64];        /* a bit for each 512 bytes that were written and not zeroed since: no hole */
	unsigned char bytes[CHUNK_BYTES];
};

struct shard {
	struct mutex lock;
	struct chunk *bucket[NR_BUCKETS];
};

/* A request that waits for its time. */
struct timed {
	uint64_t due_ns;
	uint64_t seq;                   /* among equals first come first served */
	struct iomap_request *req;
	int64_t verdict;                /* of the fail hook */
};

struct mem_device {
	/* fixed */
	struct iomap_device *dev;
	struct iomap_mem_params params;
	struct mem mem;
	bool timed;                     /* something can make a request late: there is a heap and a timer thread */
	struct thread timer;

	struct shard shard[NR_SHARDS];

	/* under lock */
	struct mutex lock;
	struct cond wake;               /* the timer: an earlier request, or stop */
	struct cond flush_room;
	struct timed *heap;             /* of queue_depth + FLUSH_DEPTH */
	unsigned nr_heap;
	unsigned inflight;              /* reads and writes from submit() until just before done() */
	unsigned flushing;
	uint64_t seq;
	uint64_t ios_busy_ns;           /* the two clocks */
	uint64_t bytes_busy_ns;
	bool stop;
};

static const struct iomap_device_ops mem_ops;

/* --- contents --------------------------------------------------------------------------------------------- */

static struct shard *shard_of(struct mem_device *m, uint64_t index, struct chunk ***bucket)
{
	uint64_t h = index * UINT64_C(0x9e3779b97f4a7c15);
	struct shard *s = &m->shard[h >> (64 - SHARD_BITS)];

	*bucket = &s->bucket[(h >> (64 - SHARD_BITS - BUCKET_BITS)) % NR_BUCKETS];
	return s;
}

static struct chunk *find(struct chunk *c, uint64_t index)
{
	while (c && c->index != index)
		c = c->next;
	return c;
}

static void mark_units(struct chunk *c, uint64_t first, uint64_t end, bool data)
{
	for (uint64_t u = first; u < end; u++) {
		if (data)
			c->data[u / 64] |= UINT64_C(1) << (u % 64);
		else
			c->data[u / 64] &= ~(UINT64_C(1) << (u % 64));
	}
}

/* First unit of the chunk from @from on that is data, or that is none; CHUNK_UNITS: there is none. */
static uint64_t next_unit(const struct chunk *c, uint64_t from, bool data)
{
	while (from < CHUNK_UNITS && (c->data[from / 64] >> (from % 64) & 1) != data)
		from++;
	return from;
}

static void read_raw(struct mem_device *m, uint64_t pos, unsigned char *to, uint64_t len)
{
	while (len) {
		uint64_t off = pos % CHUNK_BYTES, n = min_u64(len, CHUNK_BYTES - off);
		struct chunk **bucket;
		struct shard *s = shard_of(m, pos >> CHUNK_SHIFT, &bucket);

		mutex_lock(&s->lock);
		struct chunk *c = find(*bucket, pos >> CHUNK_SHIFT);

		if (c)
			memcpy(to, c->bytes + off, n);
		mutex_unlock(&s->lock);
		if (!c)
			memset(to, 0, n);
		pos += n;
		to += n;
		len -= n;
	}
}

static int write_raw(struct mem_device *m, uint64_t pos, const unsigned char *from, uint64_t len)
{
	while (len) {
		uint64_t index = pos >> CHUNK_SHIFT;
		uint64_t off = pos % CHUNK_BYTES, n = min_u64(len, CHUNK_BYTES - off);
		struct chunk *spare = NULL, **bucket;
		struct shard *s = shard_of(m, index, &bucket);

		mutex_lock(&s->lock);
		struct chunk *c = find(*bucket, index);

		if (!c) {
			mutex_unlock(&s->lock);
			spare = mem_alloc(&m->mem, sizeof(*spare));
			if (!spare)
				return -ENOMEM;
			mutex_lock(&s->lock);
			c = find(*bucket, index);
			if (!c) {
				c = spare;
				spare = NULL;
				c->index = index;
				c->next = *bucket;
				*bucket = c;
			}
		}
		memcpy(c->bytes + off, from, n);
		mark_units(c, off / UNIT_BYTES, div_round_up(off + n, UNIT_BYTES), true);
		mutex_unlock(&s->lock);
		mem_free(&m->mem, spare, sizeof(*spare));
		pos += n;
		from += n;
		len -= n;
	}
	return 0;
}

/* Chunks of one chain that lie in [pos, end) whole go to *@dead, of those that do in part that part is zeroed. */
static void zero_chain(struct chunk **link, uint64_t pos, uint64_t end, struct chunk **dead)
{
	while (*link) {
		struct chunk *c = *link;
		uint64_t start = c->index << CHUNK_SHIFT;
		uint64_t from = max_u64(pos, start), to = min_u64(end, start + CHUNK_BYTES);

		if (from < to && to - from == CHUNK_BYTES) {
			*link = c->next;
			c->next = *dead;
			*dead = c;
			continue;
		}
		if (from < to) {
			memset(c->bytes + (from - start), 0, to - from);
			mark_units(c, div_round_up(from - start, UNIT_BYTES), (to - start) / UNIT_BYTES, false);
		}
		link = &c->next;
	}
}

/* A short range is looked up chunk by chunk, a long one by walking all chunks there are. */
static void zero_raw(struct mem_device *m, uint64_t pos, uint64_t end)
{
	struct chunk *dead = NULL;

	if (pos >= end)
		return;

	uint64_t first = pos >> CHUNK_SHIFT, last = (end - 1) >> CHUNK_SHIFT;

	if (last - first < NR_SHARDS * NR_BUCKETS) {
		for (uint64_t index = first; index <= last; index++) {
			struct chunk **bucket;
			struct shard *s = shard_of(m, index, &bucket);

			mutex_lock(&s->lock);
			zero_chain(bucket, pos, end, &dead);
			mutex_unlock(&s->lock);
		}
	} else {
		for (struct shard *s = m->shard; s < m->shard + NR_SHARDS; s++) {
			mutex_lock(&s->lock);
			for (unsigned b = 0; b < NR_BUCKETS; b++)
				zero_chain(&s->bucket[b], pos, end, &dead);
			mutex_unlock(&s->lock);
		}
	}
	while (dead) {
		struct chunk *c = dead;

		dead = c->next;
		mem_free(&m->mem, c, sizeof(*c));
	}
}

/* --- one request ------------------------------------------------------------------------------------------ */

static int64_t transfer(struct mem_device *m, const struct iomap_request *req, uint64_t len)
{
	uint64_t done = 0;

	for (int i = 0; i < req->iovcnt && done < len; i++) {
		uint64_t n = min_u64(req->iov[i].iov_len, len - done);

		if (req->op == IOMAP_REQ_READ) {
			read_raw(m, req->pos + done, req->iov[i].iov_base, n);
		} else {
			int ret = write_raw(m, req->pos + done, req->iov[i].iov_base, n);

			if (ret)
				return ret;
		}
		done += n;
	}
	return (int64_t)len;
}

/* Carries @req out as the fail hook decided and completes it. No lock is held; it is in flight no longer. */
static void carry_out(struct mem_device *m, struct iomap_request *req, int64_t verdict)
{
	if (verdict < 0) {
		req->result = verdict;
	} else if (req->op == IOMAP_REQ_FLUSH) {
		req->result = 0;                /* memory has no volatile cache in front */
	} else {
		uint64_t len = request_bytes(req);

		if (verdict > 0)
			len = min_u64(len, (uint64_t)verdict);
		if (req->op == IOMAP_REQ_READ) {
			uint64_t size = device_size(m->dev);

			len = min_u64(len, req->pos < size ? size - req->pos : 0);
		}
		if (req->pos > END_MAX || len > END_MAX - req->pos)
			req->result = -EFBIG;
		else
			req->result = transfer(m, req, len);
	}
	req->done(req);
}

/* --- time ------------------------------------------------------------------------------------------------- */

static bool earlier(const struct timed *a, const struct timed *b)
{
	return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->seq < b->seq;
}

static void heap_push(struct mem_device *m, struct timed t)
{
	unsigned i = m->nr_heap++;

	for (; i && earlier(&t, &m->heap[(i - 1) / 2]); i = (i - 1) / 2)
		m->heap[i] = m->heap[(i - 1) / 2];
	m->heap[i] = t;
}

static struct timed heap_pop(struct mem_device *m)
{
	struct timed top = m->heap[0], t = m->heap[--m->nr_heap];
	unsigned i = 0;

	for (unsigned child; (child = 2 * i + 1) < m->nr_heap; i = child) {
		if (child + 1 < m->nr_heap && earlier(&m->heap[child + 1], &m->heap[child]))
			child++;
		if (!earlier(&m->heap[child], &t))
			break;
		m->heap[i] = m->heap[child];
	}
	m->heap[i] = t;
	return top;
}

static uint64_t scale_ns(uint64_t amount, uint64_t per_second)
{
	return per_second ? (uint64_t)((unsigned __int128)amount * NS_PER_S / per_second) : 0;
}

/* When a read or write that arrives at @now is due; moves the clocks on. */
static uint64_t schedule(struct mem_device *m, const struct iomap_request *req, uint64_t now)
{
	lockdep_assert_held(&m->lock);

	uint64_t start = max_u64(now, max_u64(m->ios_busy_ns, m->bytes_busy_ns));
	uint64_t transfer_ns = scale_ns(request_bytes(req), m->params.bytes_per_second);

	m->ios_busy_ns = max_u64(now, m->ios_busy_ns) + scale_ns(1, m->params.iops);
	m->bytes_busy_ns = max_u64(now, m->bytes_busy_ns) + transfer_ns;
	return start + max_u64(m->params.latency_ns, transfer_ns);
}

/* @req is about to be carried out and makes room for another. */
static void leave(struct mem_device *m, const struct iomap_request *req)
{
	lockdep_assert_held(&m->lock);
	if (req->op == IOMAP_REQ_FLUSH) {
		m->flushing--;
		cond_signal(&m->flush_room);
	} else {
		m->inflight--;
	}
}

/* @req has been counted as in flight. Completes it here, or leaves it to the timer. */
static void start(struct mem_device *m, struct iomap_request *req)
{
	uint64_t delay_ns = 0;
	int64_t verdict = m->params.fail ? m->params.fail(m->params.fail_priv, req, &delay_ns) : 0;
	uint64_t now = plat_now_ns();

	mutex_lock(&m->lock);
	uint64_t due_ns = req->op == IOMAP_REQ_FLUSH ? now + m->params.latency_ns : schedule(m, req, now);

	due_ns = delay_ns < UINT64_MAX - due_ns ? due_ns + delay_ns : UINT64_MAX;
	if (due_ns > now) {
		heap_push(m, (struct timed){ due_ns, m->seq++, req, verdict });
		if (m->heap[0].req == req)
			cond_signal(&m->wake);
		mutex_unlock(&m->lock);
		return;
	}
	leave(m, req);
	mutex_unlock(&m->lock);
	carry_out(m, req, verdict);
}

static void timer_thread(void *arg)
{
	struct mem_device *m = arg;
	struct timed due[TIMER_BATCH];

	mutex_lock(&m->lock);
	while (!m->stop || m->nr_heap) {
		unsigned n = 0;

		if (!m->nr_heap) {
			cond_wait(&m->wake, &m->lock);
			continue;
		}

		uint64_t now = plat_now_ns();

		while (n < TIMER_BATCH && m->nr_heap && m->heap[0].due_ns <= now) {
			due[n] = heap_pop(m);
			leave(m, due[n++].req);
		}
		if (!n) {
			cond_wait_until(&m->wake, &m->lock, m->heap[0].due_ns);
			continue;
		}
		mutex_unlock(&m->lock);
		for (unsigned i = 0; i < n; i++)
			carry_out(m, due[i].req, due[i].verdict);
		mutex_lock(&m->lock);
	}
	mutex_unlock(&m->lock);
}

/* --- operations ------------------------------------------------------------------------------------------- */

static int mem_submit(struct iomap_device *dev, struct iomap_request **reqs, unsigned n)
{
	struct mem_device *m = dev->priv;

	for (unsigned i = 0; i < n; i++) {
		if (!m->timed) {
			carry_out(m, reqs[i], 0);
			continue;
		}
		mutex_lock(&m->lock);
		bool full = m->inflight == m->params.queue_depth;

		m->inflight += !full;
		mutex_unlock(&m->lock);
		if (full)
			return (int)i;
		start(m, reqs[i]);
	}
	return (int)n;
}

static int mem_flush(struct iomap_device *dev, struct iomap_request *req)
{
	struct mem_device *m = dev->priv;

	if (!m->timed) {
		carry_out(m, req, 0);
		return 0;
	}
	mutex_lock(&m->lock);
	while (m->flushing == FLUSH_DEPTH)
		cond_wait(&m->flush_room, &m->lock);
	m->flushing++;
	mutex_unlock(&m->lock);
	start(m, req);
	return 0;
}

static int mem_set_size(struct iomap_device *dev, uint64_t size)
{
	uint64_t old = device_size(dev);

	/* Cut: what grows later must read as zeros. Grown: only what a test poked there is not zero already. */
	if (size < old)
		zero_raw(dev->priv, size, END_MAX);
	else
		zero_raw(dev->priv, old, size);
	return 0;
}

/* First byte from @pos on that is data: every chunk is looked at. UINT64_MAX: there is none. */
static uint64_t next_data(struct mem_device *m, uint64_t pos)
{
	uint64_t found = UINT64_MAX;

	for (struct shard *s = m->shard; s < m->shard + NR_SHARDS; s++) {
		mutex_lock(&s->lock);
		for (unsigned b = 0; b < NR_BUCKETS; b++) {
			for (const struct chunk *c = s->bucket[b]; c; c = c->next) {
				uint64_t start = c->index << CHUNK_SHIFT, unit;

				if (start + CHUNK_BYTES <= pos || start >= found)
					continue;
				unit = next_unit(c, pos > start ? (pos - start) / UNIT_BYTES : 0, true);
				if (unit < CHUNK_UNITS)
					found = min_u64(found, max_u64(pos, start + unit * UNIT_BYTES));
			}
		}
		mutex_unlock(&s->lock);
	}
	return found;
}

static uint64_t next_hole(struct mem_device *m, uint64_t pos, uint64_t size)
{
	while (pos < size) {
		uint64_t index = pos >> CHUNK_SHIFT, unit = 0, from = pos % CHUNK_BYTES / UNIT_BYTES;
		struct chunk **bucket;
		struct shard *s = shard_of(m, index, &bucket);

		mutex_lock(&s->lock);
		const struct chunk *c = find(*bucket, index);

		unit = c ? next_unit(c, from, false) : from;
		mutex_unlock(&s->lock);
		if (unit < CHUNK_UNITS)
			return max_u64(pos, (index << CHUNK_SHIFT) + unit * UNIT_BYTES);
		pos = (index + 1) << CHUNK_SHIFT;
	}
	return size;
}

static int mem_seek(struct iomap_device *dev, uint64_t pos, int whence, uint64_t *out)
{
	uint64_t size = device_size(dev);

	if (whence != SEEK_DATA && whence != SEEK_HOLE)
		return -EINVAL;
	if (pos >= size)
		return -ENXIO;
	if (whence == SEEK_HOLE) {
		*out = min_u64(next_hole(dev->priv, pos, size), size);
		return 0;
	}
	*out = next_data(dev->priv, pos);
	return *out < size ? 0 : -ENXIO;
}

static int mem_allocate(struct iomap_device *dev, uint64_t pos, uint64_t len, int mode)
{
	if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
		zero_raw(dev->priv, pos, pos + len);
	return 0;               /* memory is taken when it is written; the caller raises the size */
}

/* Frees what create made, in any state of completion. */
static void mem_device_free(struct mem_device *m)
{
	zero_raw(m, 0, END_MAX);
	for (struct shard *s = m->shard; s < m->shard + NR_SHARDS; s++)
		mutex_fini(&s->lock);
	cond_fini(&m->flush_room);
	cond_fini(&m->wake);
	mutex_fini(&m->lock);
	mem_free(&m->mem, m->heap, m->heap ? (m->params.queue_depth + FLUSH_DEPTH) * sizeof(*m->heap) : 0);

	struct mem mem = m->mem;        /* it accounts for *m, too */

	mem_free(&mem, m, sizeof(*m));
	mem_fini(&mem);
}

static void mem_destroy(struct iomap_device *dev)
{
	struct mem_device *m = dev->priv;

	if (m->timed) {
		mutex_lock(&m->lock);
		IOMAP_BUG_ON(m->nr_heap || m->inflight || m->flushing);
		m->stop = true;
		cond_signal(&m->wake);
		mutex_unlock(&m->lock);
		thread_join(&m->timer);
	}
	mem_device_free(m);
}

static const struct iomap_device_ops mem_ops = {
	.submit = mem_submit,
	.flush = mem_flush,
	.set_size = mem_set_size,
	.allocate = mem_allocate,
	.seek = mem_seek,
	.destroy = mem_destroy,
};

int iomap_device_open_mem(const struct iomap_mem_params *params, struct iomap_device **out)
{
	static const struct iomap_mem_params defaults = IOMAP_MEM_PARAMS_INIT;
	struct iomap_mem_params p;
	int ret;

	if (!out)
		return -EINVAL;
	ret = params_copy(&p, sizeof(p), params ? params : &defaults, sizeof(p));
	if (ret)
		return ret;
	if (!p.block)
		p.block = 512;
	if (!p.queue_depth)
		p.queue_depth = DEPTH_DEFAULT;
	if (p.queue_depth > DEPTH_MAX)
		return -EINVAL;

	struct mem mem;

	mem_init_malloc(&mem);
	struct mem_device *m = mem_alloc(&mem, sizeof(*m));

	if (!m) {
		mem_fini(&mem);
		return -ENOMEM;
	}
	m->mem = mem;
	m->params = p;
	m->timed = p.latency_ns || p.iops || p.bytes_per_second || p.fail;
	mutex_init(&m->lock, LOCK_DEVICE);
	cond_init(&m->wake);
	cond_init(&m->flush_room);
	for (struct shard *s = m->shard; s < m->shard + NR_SHARDS; s++)
		mutex_init(&s->lock, LOCK_DEVICE);

	const struct iomap_device_info info = { .block = p.block, .mem_align = 1, .size = p.size };
	struct iomap_device *dev = NULL;

	if (m->timed) {
		m->heap = mem_alloc(&m->mem, (p.queue_depth + FLUSH_DEPTH) * sizeof(*m->heap));
		if (!m->heap) {
			ret = -ENOMEM;
			goto free_device;
		}
	}
	ret = iomap_device_create(&mem_ops, m, &info, &dev);
	if (ret)
		goto free_device;
	m->dev = dev;
	if (m->timed) {
		ret = thread_create(&m->timer, "iomap-mem", timer_thread, m);
		if (ret) {
			m->timed = false;
			device_put(dev);        /* frees m */
			return ret;
		}
	}
	*out = dev;
	return 0;

free_device:
	mem_device_free(m);
	return ret;
}

/* --- for tests -------------------------------------------------------------------------------------------- */

static bool raw_range_ok(const struct iomap_device *dev, uint64_t pos, size_t len)
{
	return dev && dev->ops == &mem_ops && pos <= END_MAX && len <= END_MAX - pos;
}

int device_mem_peek(struct iomap_device *dev, uint64_t pos, void *buf, size_t len)
{
	if (!raw_range_ok(dev, pos, len))
		return -EINVAL;
	read_raw(dev->priv, pos, buf, len);
	return 0;
}

int device_mem_poke(struct iomap_device *dev, uint64_t pos, const void *buf, size_t len)
{
	if (!raw_range_ok(dev, pos, len))
		return -EINVAL;
	return write_raw(dev->priv, pos, buf, len);
}
