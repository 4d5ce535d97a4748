/*
 * device-limit.c - a token bucket in front of another device
 *
 * A request waits here, in order, until the bucket lets it go; then a copy of it goes to the lower device, and
 * when the copy comes back the original is completed. One dispatcher thread does all the waiting and submitting,
 * so submit() never blocks; it takes fewer requests when all copies are in use.
 *
 * A bucket is one number, the time until which what was let through has paid for itself at the rate. A request
 * may go while that time is at most BURST_NS ahead of now, and moves it on by its own cost:
 *
 *	        now      now + BURST_NS
 *	---------|-----------|--------------> t
 *	   ^ idle: starts at now   ^ busy: wait until this is at most BURST_NS away
 *
 * A large request may leave a large debt, which those after it wait for. Fractions of a nanosecond are carried
 * over, so in the long run the rate is exact; after a pause there is one burst of BURST_NS worth, or one
 * request.
 *
 * The size is the lower device's (device->below), and so is everything that is not a read or a write.
 *
 * Invariants: free + waiting + at the lower device = all slots; a request is charged once, also if the lower
 *             device refuses it at first; used <= depth, but for a while after depth was lowered.
 * Locking:    lim->lock for all that changes; never held over a call down or a done().
 * Kernel:     block/blk-throttle.c. Differs: one bucket for reads and writes together, as cloud volumes have it.
 */
#include <errno.h>
#include <string.h>
#include "atomic.h"
#include "bug.h"
#include "device.h"
#include "list.h"
#include "mem.h"
#include "params.h"
#include "util.h"

#define BURST_NS        (10 * NS_PER_MS)
#define DEPTH_DEFAULT   128
#define DEPTH_MAX       65536
#define FLUSH_DEPTH     16
#define BATCH           32
#define LOWER_RETRY_NS  NS_PER_MS       /* the lower device refused, and no completion of ours may be due */

struct bucket {
	uint64_t rate;                  /* per second; 0: no limit */
	uint64_t paid_until_ns;
	uint64_t rest;                  /* of a nanosecond, in 1/rate; < rate */
};

/* One request on its way: free, in waiting, or at the lower device. */
struct limit_slot {
	struct list link;               /* in free, waiting or flush_free; in none while at the lower device */
	struct limit *lim;
	struct iomap_request *owner;    /* the request we were given */
	struct iomap_request lower;     /* the one we send */
	bool charged;
};

/* Slots are made at open, more where a limit is changed to a deeper queue; none goes before the device. */
struct slot_block {
	struct slot_block *next;
	unsigned nr;
	struct limit_slot slots[];
};

struct limit {
	/* fixed */
	struct iomap_device *lower;     /* a reference */
	struct mem mem;
	struct thread dispatcher;

	/* under lock */
	struct mutex lock;
	struct cond wake;               /* the dispatcher: something to do, another limit, room below, or stop */
	struct cond flush_room;
	struct list free, waiting, flush_free;
	struct slot_block *blocks;
	unsigned nr_slots, used, depth;
	uint64_t split_bytes;
	struct bucket ios, bytes;
	uint64_t completions;           /* of the lower device */
	bool lower_full;                /* the dispatcher waits for one */
	bool stop;
};

static const struct iomap_device_ops limit_ops;

/* --- the bucket ------------------------------------------------------------------------------------------- */

/* When the next request may go. */
static uint64_t bucket_when(const struct bucket *b)
{
	return b->rate && b->paid_until_ns > BURST_NS ? b->paid_until_ns - BURST_NS : 0;
}

static void bucket_charge(struct bucket *b, uint64_t now, uint64_t amount)
{
	if (!b->rate)
		return;
	if (b->paid_until_ns < now) {
		b->paid_until_ns = now;
		b->rest = 0;
	}

	unsigned __int128 cost = (unsigned __int128)amount * NS_PER_S + b->rest;
	unsigned __int128 ns = cost / b->rate, room = UINT64_MAX - b->paid_until_ns;

	b->paid_until_ns += (uint64_t)(ns < room ? ns : room);
	b->rest = (uint64_t)(cost % b->rate);
}

/* What is owed stays owed: as much of it, at the new rate. */
static void bucket_set_rate(struct bucket *b, uint64_t now, uint64_t rate)
{
	struct bucket old = *b;

	*b = (struct bucket){ .rate = rate, .paid_until_ns = now };
	if (rate && old.rate && old.paid_until_ns > now) {
		unsigned __int128 ns = (unsigned __int128)(old.paid_until_ns - now) * old.rate / rate;
		unsigned __int128 room = UINT64_MAX - now;

		b->paid_until_ns += (uint64_t)(ns < room ? ns : room);
	}
}

/* --- slots ------------------------------------------------------------------------------------------------ */

/* Makes @nr more slots. */
static int add_slots(struct limit *lim, unsigned nr, struct list *to)
{
	struct slot_block *block = mem_alloc(&lim->mem, sizeof(*block) + nr * sizeof(block->slots[0]));

	if (!block)
		return -ENOMEM;
	block->nr = nr;
	mutex_lock(&lim->lock);
	block->next = lim->blocks;
	lim->blocks = block;
	for (unsigned i = 0; i < nr; i++) {
		block->slots[i].lim = lim;
		list_add_tail(to, &block->slots[i].link);
	}
	mutex_unlock(&lim->lock);
	return 0;
}

/* The lower device is through with a copy. */
static void lower_done(struct iomap_request *lower)
{
	struct limit_slot *slot = lower->priv;
	struct limit *lim = slot->lim;
	struct iomap_request *owner = slot->owner;

	owner->result = lower->result;
	mutex_lock(&lim->lock);
	if (lower->op == IOMAP_REQ_FLUSH) {
		list_add_tail(&lim->flush_free, &slot->link);
		cond_signal(&lim->flush_room);
	} else {
		list_add_head(&lim->free, &slot->link);
		lim->used--;
	}
	lim->completions++;
	if (lim->lower_full)
		cond_signal(&lim->wake);
	mutex_unlock(&lim->lock);
	owner->done(owner);
}

static void slot_fill(struct limit_slot *slot, struct iomap_request *req)
{
	slot->owner = req;
	slot->charged = false;
	slot->lower = (struct iomap_request){ .op = req->op, .pos = req->pos, .iov = req->iov, .iovcnt = req->iovcnt,
					      .done = lower_done, .priv = slot };
}

/* --- the dispatcher --------------------------------------------------------------------------------------- */

/* Takes off the queue what may go now, at most @max; if there is nothing, *@when says when there will be. */
static unsigned take_ready(struct limit *lim, struct iomap_request **ready, unsigned max, uint64_t *when)
{
	lockdep_assert_held(&lim->lock);

	uint64_t now = plat_now_ns();
	unsigned n = 0;

	*when = UINT64_MAX;
	while (n < max && !list_empty(&lim->waiting)) {
		struct limit_slot *slot = list_first(&lim->waiting, struct limit_slot, link);

		if (!slot->charged) {
			uint64_t len = request_bytes(&slot->lower);
			uint64_t due = max_u64(bucket_when(&lim->ios), bucket_when(&lim->bytes));

			if (due > now) {
				*when = due;
				break;
			}
			uint64_t ios = lim->split_bytes ? div_round_up(len, lim->split_bytes) : 1;

			bucket_charge(&lim->ios, now, max_u64(1, ios));
			bucket_charge(&lim->bytes, now, len);
			slot->charged = true;
		}
		list_del(&slot->link);
		ready[n++] = &slot->lower;
	}
	return n;
}

/* The lower device did not take these: first in line again, in the same order. Waits until it may have room. */
static void put_back(struct limit *lim, struct iomap_request **refused, unsigned n, uint64_t completions_before)
{
	lockdep_assert_held(&lim->lock);
	while (n--) {
		struct limit_slot *slot = refused[n]->priv;

		list_add_head(&lim->waiting, &slot->link);
	}
	lim->lower_full = true;
	if (lim->completions == completions_before)
		cond_wait_until(&lim->wake, &lim->lock, plat_now_ns() + LOWER_RETRY_NS);
	lim->lower_full = false;
}

static void dispatcher_thread(void *arg)
{
	struct limit *lim = arg;
	struct iomap_request *ready[BATCH];

	mutex_lock(&lim->lock);
	while (!lim->stop) {
		uint64_t when, completions = lim->completions;
		unsigned n = take_ready(lim, ready, BATCH, &when);

		if (!n) {
			if (list_empty(&lim->waiting))
				cond_wait(&lim->wake, &lim->lock);
			else
				cond_wait_until(&lim->wake, &lim->lock, when);
			continue;
		}
		mutex_unlock(&lim->lock);

		unsigned taken = (unsigned)device_submit(lim->lower, ready, n);

		mutex_lock(&lim->lock);
		if (taken < n)
			put_back(lim, ready + taken, n - taken, completions);
	}
	mutex_unlock(&lim->lock);
}

/* --- operations ------------------------------------------------------------------------------------------- */

static int limit_submit(struct iomap_device *dev, struct iomap_request **reqs, unsigned n)
{
	struct limit *lim = dev->priv;
	unsigned taken = 0;

	mutex_lock(&lim->lock);
	for (; taken < n && lim->used < lim->depth && !list_empty(&lim->free); taken++) {
		struct limit_slot *slot = list_first(&lim->free, struct limit_slot, link);

		slot_fill(slot, reqs[taken]);
		list_move_tail(&lim->waiting, &slot->link);
		lim->used++;
	}
	if (taken)
		cond_signal(&lim->wake);
	mutex_unlock(&lim->lock);
	return (int)taken;
}

/* Flushes are free and overtake what waits: they owe nothing to what is not complete yet. */
static int limit_flush(struct iomap_device *dev, struct iomap_request *req)
{
	struct limit *lim = dev->priv;

	mutex_lock(&lim->lock);
	while (list_empty(&lim->flush_free))
		cond_wait(&lim->flush_room, &lim->lock);

	struct limit_slot *slot = list_first(&lim->flush_free, struct limit_slot, link);

	list_del(&slot->link);
	mutex_unlock(&lim->lock);
	slot_fill(slot, req);

	int ret = device_flush(lim->lower, &slot->lower);

	if (ret >= 0)
		return 0;
	mutex_lock(&lim->lock);
	list_add_tail(&lim->flush_free, &slot->link);
	cond_signal(&lim->flush_room);
	mutex_unlock(&lim->lock);
	return ret;
}

static struct iomap_device *lower_of(struct iomap_device *dev)
{
	return ((struct limit *)dev->priv)->lower;
}

static int limit_set_size(struct iomap_device *dev, uint64_t size)
{
	return device_set_size(lower_of(dev), size);
}

static int limit_allocate(struct iomap_device *dev, uint64_t pos, uint64_t len, int mode)
{
	return device_allocate(lower_of(dev), pos, len, mode);
}

static int limit_seek(struct iomap_device *dev, uint64_t pos, int whence, uint64_t *out)
{
	return device_seek(lower_of(dev), pos, whence, out);
}

static void limit_free(struct limit *lim)
{
	while (lim->blocks) {
		struct slot_block *block = lim->blocks;

		lim->blocks = block->next;
		mem_free(&lim->mem, block, sizeof(*block) + block->nr * sizeof(block->slots[0]));
	}
	cond_fini(&lim->flush_room);
	cond_fini(&lim->wake);
	mutex_fini(&lim->lock);

	struct mem mem = lim->mem;      /* it accounts for *lim, too */

	mem_free(&mem, lim, sizeof(*lim));
	mem_fini(&mem);
}

static void stop_dispatcher(struct limit *lim)
{
	mutex_lock(&lim->lock);
	IOMAP_BUG_ON(lim->used);
	lim->stop = true;
	cond_signal(&lim->wake);
	mutex_unlock(&lim->lock);
	thread_join(&lim->dispatcher);
}

static void limit_destroy(struct iomap_device *dev)
{
	struct limit *lim = dev->priv;
	struct iomap_device *lower = lim->lower;

	stop_dispatcher(lim);
	limit_free(lim);
	device_put(lower);
}

static const struct iomap_device_ops limit_ops = {
	.submit = limit_submit,
	.flush = limit_flush,
	.set_size = limit_set_size,
	.allocate = limit_allocate,
	.seek = limit_seek,
	.destroy = limit_destroy,
};

/* --- kernel files below ----------------------------------------------------------------------------------- */

static int limit_fd(struct iomap_device *dev)
{
	return lower_of(dev)->file->fd(lower_of(dev));
}

static int limit_fstat(struct iomap_device *dev, struct stat *st)
{
	return lower_of(dev)->file->fstat(lower_of(dev), st);
}

static int limit_make_writable(struct iomap_device *dev, const char *path)
{
	return lower_of(dev)->file->make_writable(lower_of(dev), path);
}

static int limit_claim(struct iomap_device *dev)
{
	return lower_of(dev)->file->claim(lower_of(dev));
}

static int limit_fsync(struct iomap_device *dev)
{
	return lower_of(dev)->file->fsync(lower_of(dev));
}

static const struct device_file_ops limit_file_ops = {
	.fd = limit_fd,
	.fstat = limit_fstat,
	.make_writable = limit_make_writable,
	.claim = limit_claim,
	.fsync = limit_fsync,
};

/* --- open and change -------------------------------------------------------------------------------------- */

/* The caller's params, or none, with defaults filled in. */
static int read_params(struct iomap_limit_params *p, const struct iomap_limit_params *from)
{
	static const struct iomap_limit_params none = IOMAP_LIMIT_PARAMS_INIT;
	int ret = params_copy(p, sizeof(*p), from ? from : &none, sizeof(*p));

	if (ret)
		return ret;
	if (!p->queue_depth)
		p->queue_depth = DEPTH_DEFAULT;
	return p->queue_depth > DEPTH_MAX ? -EINVAL : 0;
}

static void apply(struct limit *lim, const struct iomap_limit_params *p)
{
	uint64_t now = plat_now_ns();

	mutex_lock(&lim->lock);
	bucket_set_rate(&lim->ios, now, p->iops);
	bucket_set_rate(&lim->bytes, now, p->bytes_per_second);
	lim->split_bytes = p->split_bytes;
	lim->depth = p->queue_depth;
	cond_signal(&lim->wake);
	mutex_unlock(&lim->lock);
}

/* Slots for @depth requests. */
static int make_room(struct limit *lim, unsigned depth)
{
	mutex_lock(&lim->lock);
	unsigned lacking = depth > lim->nr_slots ? depth - lim->nr_slots : 0;

	lim->nr_slots += lacking;
	mutex_unlock(&lim->lock);
	if (!lacking)
		return 0;

	int ret = add_slots(lim, lacking, &lim->free);

	if (ret) {
		mutex_lock(&lim->lock);
		lim->nr_slots -= lacking;
		mutex_unlock(&lim->lock);
	}
	return ret;
}

int iomap_device_open_limit(struct iomap_device *lower, const struct iomap_limit_params *params,
			    struct iomap_device **out)
{
	struct iomap_limit_params p;
	int ret;

	if (!lower || !out)
		return -EINVAL;
	ret = read_params(&p, params);
	if (ret)
		return ret;

	struct mem mem;

	mem_init_malloc(&mem);
	struct limit *lim = mem_alloc(&mem, sizeof(*lim));

	if (!lim) {
		mem_fini(&mem);
		return -ENOMEM;
	}
	lim->mem = mem;
	mutex_init(&lim->lock, LOCK_DEVICE);
	cond_init(&lim->wake);
	cond_init(&lim->flush_room);
	list_init(&lim->free);
	list_init(&lim->waiting);
	list_init(&lim->flush_free);
	ret = make_room(lim, p.queue_depth);
	if (!ret)
		ret = add_slots(lim, FLUSH_DEPTH, &lim->flush_free);
	if (ret)
		goto free_limit;
	apply(lim, &p);
	lim->lower = device_get(lower);
	ret = thread_create(&lim->dispatcher, "iomap-limit", dispatcher_thread, lim);
	if (ret)
		goto put_lower;

	struct iomap_device_info info = lower->info;

	info.size = device_size(lower);
	ret = iomap_device_create(&limit_ops, lim, &info, out);
	if (ret)
		goto stop_thread;
	(*out)->below = lower;
	(*out)->file = lower->file ? &limit_file_ops : NULL;
	return 0;

stop_thread:
	stop_dispatcher(lim);
put_lower:
	device_put(lower);
free_limit:
	limit_free(lim);
	return ret;
}

int iomap_device_set_limit(struct iomap_device *dev, const struct iomap_limit_params *params)
{
	struct iomap_limit_params p;

	if (!dev || dev->ops != &limit_ops)
		return -EINVAL;

	int ret = read_params(&p, params);

	if (ret)
		return ret;
	ret = make_room(dev->priv, p.queue_depth);
	if (ret)
		return ret;
	apply(dev->priv, &p);
	return 0;
}
