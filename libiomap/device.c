/*
 * device.c - what all devices have in common: references, counting, the current size
 *
 * Every request of the library passes device_submit() on its way down and request_done() on its way up. For that
 * the owner's done() is parked in req->owner_done while the request is out, and put back before anybody else
 * sees it again. A backend calls req->done() without knowing of any of this. A stacked device (device-limit.c)
 * sends requests of its own to the one below, so each level parks its own.
 *
 * The size lives here as well, so that no backend has to keep it: a completed write raises it before its owner
 * hears of the completion, and a stacked device has the size of the one below at all times, not a copy.
 *
 * Invariants: a request taken by the backend is completed exactly once; one that was not taken comes back as it
 *             went.
 * Locking:    none. Who changes the size downwards (set_size) keeps extending writes away meanwhile.
 * Kernel:     block/blk-core.c, bio.c. Differs: requests have no flags; the size is that of a file, not of a
 *             disk.
 */
#include <errno.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include "atomic.h"
#include "bug.h"
#include "device.h"
#include "util.h"

#define BLOCK_MIN       512
#define BLOCK_MAX       65536
#define MEM_ALIGN_MAX   4096

/* --- life ------------------------------------------------------------------------------------------------- */

int iomap_device_create(const struct iomap_device_ops *ops, void *priv, const struct iomap_device_info *info,
			struct iomap_device **out)
{
	if (!ops || !ops->submit || !ops->flush || !ops->destroy || !info || !out)
		return -EINVAL;
	if (!is_pow2(info->block) || info->block < BLOCK_MIN || info->block > BLOCK_MAX)
		return -EINVAL;
	if (info->mem_align && (!is_pow2(info->mem_align) || info->mem_align > MEM_ALIGN_MAX))
		return -EINVAL;
	if ((info->max_bytes && info->max_bytes < info->block) || info->size > INT64_MAX)
		return -EINVAL;

	struct iomap_device *dev = calloc(1, sizeof(*dev));

	if (!dev)
		return -ENOMEM;
	dev->ops = ops;
	dev->priv = priv;
	dev->info = *info;
	if (!dev->info.mem_align)
		dev->info.mem_align = 1;
	store_relaxed(&dev->size, info->size);          /* nobody else knows it yet */
	store_relaxed(&dev->refs, 1);
	*out = dev;
	return 0;
}

void *iomap_device_priv(struct iomap_device *dev)
{
	return dev ? dev->priv : NULL;
}

int iomap_device_close(struct iomap_device *dev)
{
	if (!dev)
		return -EINVAL;
	device_put(dev);
	return 0;
}

struct iomap_device *device_get(struct iomap_device *dev)
{
	uint32_t refs = add_relaxed(&dev->refs, 1);     /* the caller has one already */

	IOMAP_BUG_ON(!refs);
	(void)refs;
	return dev;
}

void device_put(struct iomap_device *dev)
{
	might_sleep();

	uint32_t refs = sub_acq_rel(&dev->refs, 1);

	IOMAP_BUG_ON(!refs);
	if (refs != 1)
		return;
	dev->ops->destroy(dev);
	free(dev);
}

int device_claim(struct iomap_device *dev, void *owner)
{
	for (struct iomap_device *d = dev; d; d = d->below) {
		void *found = NULL;

		if (cmpxchg_acquire(&d->owner, &found, owner) || found == owner)
			continue;
		/* What lies above is of no use to this owner without the one below. */
		device_unclaim(dev, owner);
		return -EBUSY;
	}
	return 0;
}

void device_unclaim(struct iomap_device *dev, void *owner)
{
	for (struct iomap_device *d = dev; d; d = d->below) {
		void *found = owner;

		(void)cmpxchg_acquire(&d->owner, &found, NULL);
	}
}

/* --- requests --------------------------------------------------------------------------------------------- */

uint64_t request_bytes(const struct iomap_request *req)
{
	uint64_t len = 0;

	for (int i = 0; i < req->iovcnt; i++)
		len += req->iov[i].iov_len;
	return len;
}

/* What <iomap/device.h> promises to backends, looked at in debug builds. */
static void check_request(const struct iomap_device *dev, const struct iomap_request *req)
{
#ifdef IOMAP_DEBUG
	const struct iomap_device_info *info = &dev->info;
	uint64_t len = request_bytes(req);
	bool may_end_unaligned = req->op == IOMAP_REQ_WRITE && !device_fixed_size(dev);

	IOMAP_BUG_ON(req->op != IOMAP_REQ_READ && req->op != IOMAP_REQ_WRITE);
	IOMAP_BUG_ON(!req->done);
	IOMAP_BUG_ON(req->iovcnt <= 0);
	IOMAP_BUG_ON(len == 0);
	IOMAP_BUG_ON(req->pos % info->block);
	IOMAP_BUG_ON(len % info->block && !may_end_unaligned);
	IOMAP_BUG_ON(info->max_bytes && len > info->max_bytes);
	for (int i = 0; i < req->iovcnt; i++) {
		IOMAP_BUG_ON((uintptr_t)req->iov[i].iov_base % info->mem_align);
		IOMAP_BUG_ON(i < req->iovcnt - 1 && req->iov[i].iov_len % info->mem_align);
	}
#else
	(void)dev;
	(void)req;
#endif
}

static void raise_size(struct iomap_device *dev, uint64_t end)
{
	uint64_t size = load_relaxed(&dev->size);       /* a guess; the exchange looks again */

	if (dev->below || device_fixed_size(dev))
		return;
	while (size < end)
		/* pairs with device_size(): who reads the new size finds the bytes that made it */
		if (atomic_compare_exchange_strong_explicit(&dev->size, &size, end, memory_order_acq_rel,
							    memory_order_relaxed))
			return;
}

/* Totals that only grow and are read one by one: relaxed is enough. */
static void count(struct iomap_device *dev, const struct iomap_request *req)
{
	struct device_stats *st = &dev->stats;
	bool ok = req->result >= 0;

	switch (req->op) {
	case IOMAP_REQ_READ:
		add_relaxed(&st->read_ios, 1);
		if (ok)
			add_relaxed(&st->read_bytes, (uint64_t)req->result);
		break;
	case IOMAP_REQ_WRITE:
		add_relaxed(&st->write_ios, 1);
		if (ok)
			add_relaxed(&st->written_bytes, (uint64_t)req->result);
		break;
	default:
		add_relaxed(&st->flushes, 1);
	}
	if (!ok)
		add_relaxed(&st->io_errors, 1);
}

/* The backend calls this as req->done(). */
static void request_done(struct iomap_request *req)
{
	struct iomap_device *dev = req->device;

	might_sleep();          /* we do not, but no short lock may be held over a callback */
	count(dev, req);
	if (req->op == IOMAP_REQ_WRITE && req->result > 0)
		raise_size(dev, req->pos + (uint64_t)req->result);
	/* The first part of it may be there: a file grows with what is written, whatever becomes of the rest. */
	if (req->op == IOMAP_REQ_WRITE && req->result < 0 && !dev->below && !device_fixed_size(dev) &&
	    req->pos + request_bytes(req) > load_relaxed(&dev->size))
		store_release(&dev->size_unsure, true);
	req->done = req->owner_done;
	req->done(req);
}

static void park(struct iomap_device *dev, struct iomap_request *req)
{
	req->device = dev;
	req->owner_done = req->done;
	req->done = request_done;
}

static void unpark(struct iomap_request *req)
{
	req->done = req->owner_done;
}

int device_submit(struct iomap_device *dev, struct iomap_request **reqs, unsigned n)
{
	might_sleep();
	if (!n)
		return 0;
	for (unsigned i = 0; i < n; i++) {
		check_request(dev, reqs[i]);
		park(dev, reqs[i]);
	}

	int ret = dev->ops->submit(dev, reqs, n);
	unsigned taken = ret > 0 ? (unsigned)ret : 0;

	IOMAP_BUG_ON(taken > n);
	if (ret < 0 && ret != -EAGAIN && ret != -EINTR) {
		/* The first one can never be taken: its owner hears of it the usual way. */
		reqs[0]->result = ret;
		reqs[0]->done(reqs[0]);
		taken = 1;
	}
	for (unsigned i = taken; i < n; i++)
		unpark(reqs[i]);
	if (taken < n)
		add_relaxed(&dev->stats.io_retries, 1); /* one a refusal, however many were offered with it */
	return (int)taken;
}

int device_flush(struct iomap_device *dev, struct iomap_request *req)
{
	might_sleep();
	IOMAP_BUG_ON(!req->done);
	req->op = IOMAP_REQ_FLUSH;
	park(dev, req);

	int ret = dev->ops->flush(dev, req);

	if (ret >= 0)
		return 0;
	req->result = ret;
	count(dev, req);
	unpark(req);
	return ret;
}

/* --- size, space ------------------------------------------------------------------------------------------ */

int device_set_size(struct iomap_device *dev, uint64_t size)
{
	might_sleep();
	if (device_fixed_size(dev))
		return -EOPNOTSUPP;
	if (size > INT64_MAX)
		return -EFBIG;

	int ret = dev->ops->set_size(dev, size);

	if (!ret && !dev->below) {
		store_release(&dev->size, size);        /* pairs with device_size() */
		store_release(&dev->size_unsure, false);
	}
	return ret;
}

int device_allocate(struct iomap_device *dev, uint64_t pos, uint64_t len, int mode)
{
	might_sleep();
	if (mode & ~(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
		return -EOPNOTSUPP;
	/* fallocate(2): a punch keeps the size, and is not zeroing as well */
	if ((mode & FALLOC_FL_PUNCH_HOLE) && mode != (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE))
		return -EOPNOTSUPP;
	if (!len)
		return -EINVAL;
	if (pos > INT64_MAX || len > INT64_MAX - pos)
		return -EFBIG;
	if (!dev->ops->allocate)
		return -EOPNOTSUPP;

	int ret = dev->ops->allocate(dev, pos, len, mode);

	if (!ret && !(mode & FALLOC_FL_KEEP_SIZE))
		raise_size(dev, pos + len);
	return ret;
}

int device_seek(struct iomap_device *dev, uint64_t pos, int whence, uint64_t *out)
{
	might_sleep();
	if (!dev->ops->seek)
		return -EOPNOTSUPP;
	return dev->ops->seek(dev, pos, whence, out);
}

/* --- what it is, what it did ------------------------------------------------------------------------------ */

int iomap_device_info(struct iomap_device *dev, struct iomap_device_info *out)
{
	if (!dev || !out)
		return -EINVAL;
	*out = dev->info;
	out->size = device_size(dev);
	return 0;
}

int iomap_device_stat(struct iomap_device *dev, struct iomap_device_stat *st, size_t size)
{
	if (!dev || !st || !size || size % sizeof(uint64_t))
		return -EINVAL;

	struct device_stats *from = &dev->stats;
	const struct iomap_device_stat now = {
		.read_bytes = load_relaxed(&from->read_bytes),
		.written_bytes = load_relaxed(&from->written_bytes),
		.read_ios = load_relaxed(&from->read_ios),
		.write_ios = load_relaxed(&from->write_ios),
		.flushes = load_relaxed(&from->flushes),
		.io_errors = load_relaxed(&from->io_errors),
		.io_retries = load_relaxed(&from->io_retries),
		.io_merged = load_relaxed(&from->io_merged),
	};

	memset(st, 0, size);
	memcpy(st, &now, min_u64(size, sizeof(now)));
	return 0;
}
