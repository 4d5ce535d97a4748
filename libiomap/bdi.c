/*
 * bdi.c - counters, request slots and completions of one backing device
 *
 * What a device does not take of a batch is offered again by its submitter after the next completion: nobody else knows
 * about it, so nothing can be forgotten. The sleep is bounded because a queue may be full with requests that are not ours.
 *
 * Invariants: levels never go below zero; sums of the cache equal the sums over its backing devices.
 * Locking:    depth_lock for slots and the completion count; counters are atomic.
 * Kernel:     struct bdi_writeback in mm/backing-dev.c. Differs: bytes; one set of counters, exact.
 */
#include <errno.h>
#include <string.h>
#include "bdi.h"
#include "split.h"

#define OFFER_AGAIN_NS (2 * NS_PER_MS)  /* when no completion tells us that there is room */

int wb_create(struct zone *zone, struct wb_peaks *peaks, struct wb_sums *sums, unsigned depth, struct wb **out)
{
	struct wb *wb = mem_alloc_aligned(&zone->mem, sizeof(*wb), 64);

	if (!wb)
		return -ENOMEM;
	wb->zone = zone;
	wb->peaks = peaks;
	wb->sums = sums;
	wb->depth = depth;
	list_init(&wb->all);
	mutex_init(&wb->list_lock, LOCK_WB_LIST);
	list_init(&wb->dirty);
	list_init(&wb->io);
	list_init(&wb->more_io);
	cond_init(&wb->work_cond);
	mutex_init(&wb->depth_lock, LOCK_DEVICE);
	cond_init(&wb->depth_cond);
	list_init(&wb->free_ioends);
	mutex_init(&wb->bw_lock, LOCK_LEAF);
	wb_rate_init(&wb->rate, 0, 0, plat_now_ns() / NS_PER_MS);
	store_relaxed(&wb->last_good_ns, plat_now_ns());
	wb->last_old_flush_ns = plat_now_ns();
	*out = wb;
	return 0;
}

void wb_destroy(struct wb *wb)
{
	mutex_lock(&wb->depth_lock);
	while (wb->outstanding) {
		wb->depth_waiters++;
		cond_wait(&wb->depth_cond, &wb->depth_lock);
		wb->depth_waiters--;
	}
	mutex_unlock(&wb->depth_lock);
	IOMAP_BUG_ON(wb->has_flusher || !list_empty(&wb->dirty) || !list_empty(&wb->io) || !list_empty(&wb->more_io));
	mem_free(&wb->zone->mem, wb->ioend_memory, wb->ioend_bytes);
	if (wb->aio)
		aio_queue_put(wb->aio);
	if (wb->device) {
		device_unclaim(wb->device, wb->owner);
		device_put(wb->device);
	}
	mutex_fini(&wb->list_lock);
	mutex_fini(&wb->depth_lock);
	mutex_fini(&wb->bw_lock);
	cond_fini(&wb->work_cond);
	cond_fini(&wb->depth_cond);
	mem_free(&wb->zone->mem, wb, sizeof(*wb));
}

static void raise_peak(_Atomic uint64_t *peak, int64_t level)
{
	uint64_t seen = load_relaxed(peak);

	while (level > 0 && (uint64_t)level > seen)
		if (cmpxchg_relaxed(peak, &seen, (uint64_t)level))
			break;
}

static void add_level(struct wb *wb, enum wb_level l, int64_t x)
{
	int64_t was;

	if (!x)
		return;
	was = add_relaxed(&wb->level[l], x);
	IOMAP_BUG_ON(was + x < 0);
	(void)was;
	add_relaxed(&wb->sums->level[l], x);
}

static void add_total(struct wb *wb, enum wb_total t, uint64_t x)
{
	if (!x)
		return;
	add_relaxed(&wb->total[t], x);
	add_relaxed(&wb->sums->total[t], x);
}

void wb_account(struct wb *wb, const struct charge *c)
{
	add_level(wb, WB_DIRTY, c->dirty);
	add_level(wb, WB_WRITEBACK, c->writeback);
	add_level(wb, WB_PINNED, c->pinned);
	add_level(wb, WB_FAILED, c->failed);
	add_level(wb, WB_DONTCACHE, c->dontcache);
	add_total(wb, WB_DIRTIED, c->dirtied);
	add_total(wb, WB_REDIRTIED, c->redirtied);
	add_total(wb, WB_SUBMITTED, c->submitted);
	add_total(wb, WB_WRITTEN, c->written);
	add_total(wb, WB_WRITE_FAILED, c->write_failed);
	add_total(wb, WB_CANCELLED, c->cancelled);
	add_total(wb, WB_PIN_ACQUIRED, c->pin_acquired);
	add_total(wb, WB_PIN_RELEASED, c->pin_released);
	add_total(wb, WB_PIN_DROPPED, c->pin_dropped);
	if (c->dirty > 0) {
		int64_t dirty = load_relaxed(&wb->sums->level[WB_DIRTY]);

		raise_peak(&wb->peaks->dirty, dirty + load_relaxed(&wb->sums->level[WB_WRITEBACK]));
	}
	if (c->pin_acquired)            /* one folio turned dirty */
		raise_peak(&wb->peaks->dirty_folio, (int64_t)c->pin_acquired);
	if (c->pinned > 0)
		raise_peak(&wb->peaks->pinned, load_relaxed(&wb->sums->level[WB_PINNED]));
}

/* --- requests --------------------------------------------------------------------------------------------- */

bool wb_is_busy(struct wb *wb)
{
	bool busy;

	mutex_lock(&wb->depth_lock);
	busy = wb->outstanding != 0;
	mutex_unlock(&wb->depth_lock);
	return busy;
}

uint64_t wb_completions(struct wb *wb)
{
	uint64_t n;

	mutex_lock(&wb->depth_lock);
	n = wb->completions;
	mutex_unlock(&wb->depth_lock);
	return n;
}

static void wake_waiters(struct wb *wb)
{
	lockdep_assert_held(&wb->depth_lock);
	wb->completions++;
	if (wb->depth_waiters)
		cond_broadcast(&wb->depth_cond);
}

void wb_completed(struct wb *wb)
{
	mutex_lock(&wb->depth_lock);
	IOMAP_BUG_ON(!wb->outstanding);
	wb->outstanding--;
	wake_waiters(wb);
	mutex_unlock(&wb->depth_lock);
}

void wb_poke(struct wb *wb)
{
	mutex_lock(&wb->depth_lock);
	wake_waiters(wb);
	mutex_unlock(&wb->depth_lock);
}

void wb_wait_completion(struct wb *wb, uint64_t seen, uint64_t when_ns)
{
	might_sleep();
	mutex_lock(&wb->depth_lock);
	wb->depth_waiters++;
	while (wb->completions == seen && cond_wait_until(&wb->depth_cond, &wb->depth_lock, when_ns))
		;
	wb->depth_waiters--;
	mutex_unlock(&wb->depth_lock);
}

static void offer(struct wb *wb, struct iomap_device *dev, struct iomap_request **reqs, unsigned n)
{
	while (n) {
		uint64_t seen = wb_completions(wb);
		unsigned took = (unsigned)device_submit(dev, reqs, n);

		reqs += took;
		n -= took;
		if (n)
			wb_wait_completion(wb, seen, plat_now_ns() + OFFER_AGAIN_NS);
	}
}

/* More than the device takes at once, because a block is. */
static void offer_split(struct wb *wb, struct iomap_device *dev, struct iomap_request *req)
{
	struct split *s = split_create(&wb->zone->mem, req, dev->info.max_bytes);
	struct iomap_request **parts;
	unsigned nr;

	if (!s) {
		req->result = -ENOMEM;
		req->done(req);
		return;
	}
	parts = split_parts(s, &nr);
	while (nr) {
		/*
		 * The split goes with its last part's completion: nothing of it is touched after that part is
		 * given out.
		 */
		unsigned n = (unsigned)min_u64(nr, 16);
		struct iomap_request *batch[16];

		memcpy(batch, parts, n * sizeof(*batch));
		nr -= n;
		parts += nr ? n : 0;
		offer(wb, dev, batch, n);
	}
}

void wb_hand_out(struct wb *wb, unsigned n)
{
	mutex_lock(&wb->depth_lock);
	wb->outstanding += n;
	mutex_unlock(&wb->depth_lock);
}

static bool too_large(struct iomap_device *dev, const struct iomap_request *req)
{
	return dev->info.max_bytes && request_bytes(req) > dev->info.max_bytes;
}

bool wb_offer_again(struct wb *wb, struct iomap_device *dev, struct iomap_request *req)
{
	if (!too_large(dev, req))
		return device_submit(dev, &req, 1) == 1;
	offer_split(wb, dev, req);
	return true;
}

void wb_submit(struct wb *wb, struct iomap_device *dev, struct iomap_request **reqs, unsigned n)
{
	might_sleep();
	wb_hand_out(wb, n);
	for (unsigned i = 0, from = 0; i < n; ) {
		bool large = too_large(dev, reqs[i]);
		struct iomap_request *req = reqs[i++];

		if (large) {
			if (i - 1 > from)
				offer(wb, dev, reqs + from, i - 1 - from);
			offer_split(wb, dev, req);
			from = i;
		} else if (i == n) {
			offer(wb, dev, reqs + from, i - from);
		}
	}
}

struct sync_request { struct iomap_request req; struct wb *wb; struct mutex lock; struct cond cond; bool done; };

static void sync_init(struct sync_request *s, struct wb *wb)
{
	s->wb = wb;
	mutex_init(&s->lock, LOCK_WAIT);
	cond_init(&s->cond);
	s->done = false;
}

static void sync_done(struct iomap_request *req)
{
	struct sync_request *s = container_of(req, struct sync_request, req);
	struct wb *wb = s->wb;

	mutex_lock(&s->lock);
	s->done = true;
	cond_signal(&s->cond);
	mutex_unlock(&s->lock);         /* s may be gone from here on */
	wb_completed(wb);
}

static int64_t sync_wait(struct sync_request *s)
{
	mutex_lock(&s->lock);
	while (!s->done)
		cond_wait(&s->cond, &s->lock);
	mutex_unlock(&s->lock);
	mutex_fini(&s->lock);
	cond_fini(&s->cond);
	return s->req.result;
}

static int64_t io_once(struct wb *wb, struct iomap_device *dev, unsigned op, uint64_t pos, const struct iovec *iov, int nr)
{
	struct sync_request s = { .req = { .op = op, .pos = pos, .iov = iov, .iovcnt = nr, .done = sync_done } };
	struct iomap_request *req = &s.req;

	sync_init(&s, wb);
	wb_submit(wb, dev, &req, 1);
	return sync_wait(&s);
}

/* Takes @n bytes from the front of *@iov. */
static void cut_front(struct iovec **iov, int *nr, uint64_t n)
{
	while (n) {
		uint64_t cut = min_u64(n, (*iov)->iov_len);

		(*iov)->iov_base = (char *)(*iov)->iov_base + cut;
		(*iov)->iov_len -= cut;
		n -= cut;
		if (!(*iov)->iov_len) {
			++*iov;
			--*nr;
		}
	}
}

int64_t wb_iov(struct wb *wb, struct iomap_device *dev, unsigned op, uint64_t pos, struct iovec *iov, int nr)
{
	uint64_t done = 0, len = 0;

	for (int i = 0; i < nr; i++)
		len += iov[i].iov_len;
	while (done < len) {
		int64_t n = io_once(wb, dev, op, pos + done, iov, nr);
		uint64_t gain;

		if (n < 0)
			return op == IOMAP_REQ_WRITE && done ? (int64_t)done : n;
		if ((uint64_t)n == len - done)
			break;
		/* Short: go on where a block begins, while that gains something. */
		gain = round_down((uint64_t)n, dev->info.block);
		if (!gain || (op == IOMAP_REQ_READ && pos + done + (uint64_t)n >= device_size(dev)))
			return (int64_t)(done + (uint64_t)n);
		add_relaxed(&dev->stats.io_retries, 1);
		cut_front(&iov, &nr, gain);
		done += gain;
	}
	return (int64_t)len;
}

int64_t wb_io(struct wb *wb, struct iomap_device *dev, unsigned op, uint64_t pos, void *buf, uint64_t len)
{
	struct iovec iov = { buf, len };

	return wb_iov(wb, dev, op, pos, &iov, 1);
}

int wb_flush(struct wb *wb, struct iomap_device *dev)
{
	struct sync_request s = { .req = { .op = IOMAP_REQ_FLUSH, .done = sync_done } };
	int ret;

	sync_init(&s, wb);
	wb_hand_out(wb, 1);
	ret = device_flush(dev, &s.req);
	if (ret < 0) {
		s.req.result = ret;
		sync_done(&s.req);
	}
	ret = (int)sync_wait(&s);
	return ret < 0 ? ret : 0;
}
