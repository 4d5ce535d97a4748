/*
 * device-aio.c - a file or block device through O_DIRECT and libaio
 *
 * All devices of one aio_queue share a kernel context and two threads. A request gets a slot; its bytes go like
 * this:
 *
 *	submit()  --------------------> kernel ----> completion thread ----> done()
 *	   |                              ^             | short, EAGAIN,
 *	   | nothing but a tail           |             | or a tail is left
 *	   +------------> work list ------+-------------+
 *	                     |            | the next piece
 *	                  worker: one piece at a time, or the tail with pwrite, then done()
 *
 * The completion thread only waits, computes and calls done(). What may block is the worker's: io_submit() of
 * what is left of a request (it may wait inside the kernel), and the tail.
 *
 * The tail: O_DIRECT moves whole blocks, and a write of the last, partial block of a file would set its size to
 * the block's end, so that a crash could show bytes nobody wrote. Its bytes go at their exact length through a
 * second, buffered descriptor of the same inode, opened when first needed, and only after all before them is
 * written: at no time is the size anything but an old or the new one, or one in between. fdatasync of either
 * descriptor covers both.
 *
 * A piece that comes back short is continued at the last block boundary reached, as O_DIRECT must begin at one,
 * so some bytes may move twice. It ends when nothing is gained: for a read that is the end of the file, for a
 * write -EIO.
 *
 * Invariants: a slot has one owner at a time: the free list, a submitter, the kernel, the completion thread, the
 *             work list or the worker; it is free again before done() is called; nothing of the device is
 *             touched after done(). submitted - completed = pieces in the kernel, once every submitter has
 *             counted.
 * Locking:    q->lock for lists and counts; d->lock only to take turns in changing descriptors. Neither over I/O
 *             or done().
 * Kernel:     fs/iomap/direct-io.c falls back to buffered I/O for what is unaligned; here the fallback is ours.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE         /* O_DIRECT */
#endif
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include "atomic.h"
#include "bug.h"
#include "device.h"
#include "list.h"
#include "mem.h"
#include "mutant.h"
#include "util.h"

#define DEPTH_DEFAULT   128
#define BLOCK_MIN       512
#define BLOCK_MAX       65536
#define MEM_ALIGN_MAX   4096
#define IOVS_MAX        1024                            /* the kernel's UIO_MAXIOV */
#define SLOT_IOVS       64                              /* pieces of a request that does not go down as it is */
#define BYTES_MAX       UINT64_C(0x7fff0000)            /* the kernel's MAX_RW_COUNT, in whole blocks */
#define BATCH           32
#define EAGAIN_TRIES    4096
#define EAGAIN_PAUSE_NS (NS_PER_MS / 2)
#define WAIT_PAUSE_NS   NS_PER_MS                       /* io_getevents() failed, which it cannot: do not spin */
#define CLAIM_BYTE      (INT64_MAX - 1)                 /* 2^63 - 2; no file system has data there */
#define OFLAGS_KNOWN    (O_ACCMODE | O_CREAT | O_EXCL | O_TRUNC | O_DIRECT | O_CLOEXEC | O_LARGEFILE)

struct aio_device {
	struct iomap_device *dev;
	struct aio_queue *q;            /* a reference */
	struct stat id;                 /* st_dev, st_ino, st_rdev, st_mode as opened */
	_Atomic int fd;                 /* the direct descriptor; replaced once, by make_writable() */
	int old_fd;                     /* the read-only one before that, which I/O may be using; or -1 */
	int tail_fd;                    /* the worker's: buffered, read-write; -1 until first needed */
	_Atomic unsigned tail_writes;   /* on their way through it, all to one page */
	_Atomic uint64_t tail_page;     /* its first byte, while there are any */

	/* under lock */
	struct mutex lock;
	struct cond turn;
	bool changing;                  /* a thread is in claim() or make_writable() */
	/* by whoever set changing */
	bool claimed;
};

/* A request on its way; offsets count from its start. */
struct aio_slot {
	struct list link;               /* free or work */
	struct iomap_request *req;
	struct aio_device *d;
	uint64_t len;
	uint64_t direct;                /* the whole blocks in front; the tail is [direct, len) */
	uint64_t start;                 /* the piece in the kernel, or the next: a multiple of the block */
	uint64_t piece;
	uint64_t reached;               /* end of what has been transferred */
	unsigned tries;                 /* EAGAINs in a row */
	bool tail;                      /* counted in tail_writes */
	/*
	 * Written last before io_submit(), read first after io_getevents(). The kernel orders the two; race
	 * checkers cannot see that, so they get a pair of their own.
	 */
	_Atomic bool in_kernel;
	struct iovec iov[SLOT_IOVS];
};

/* From create to the last put; its threads live as long. */
struct aio_queue {
	/* fixed */
	plat_aio_t aio;
	struct mem mem;
	unsigned depth;
	struct aio_slot *slots;
	unsigned char *bounce;          /* the worker's: one tail */
	struct thread completion, worker;
	_Atomic uint32_t refs;

	/* under lock */
	struct mutex lock;
	struct cond submitted_cond;     /* the completion thread sleeps here while nothing is in the kernel */
	struct cond work_cond;
	struct list free, work;
	uint64_t submitted, completed;
	bool stop;
};

/* --- slots ------------------------------------------------------------------------------------------------ */

static unsigned take_slots(struct aio_queue *q, struct aio_slot **slots, unsigned max)
{
	unsigned n = 0;

	mutex_lock(&q->lock);
	for (; n < max && !list_empty(&q->free); n++) {
		slots[n] = list_first(&q->free, struct aio_slot, link);
		list_del(&slots[n]->link);
	}
	mutex_unlock(&q->lock);
	return n;
}

static void give_slots(struct aio_queue *q, struct aio_slot **slots, unsigned n)
{
	if (!n)
		return;
	mutex_lock(&q->lock);
	while (n)
		list_add_head(&q->free, &slots[--n]->link);
	mutex_unlock(&q->lock);
}

static void give_work(struct aio_queue *q, struct aio_slot *slot)
{
	mutex_lock(&q->lock);
	list_add_tail(&q->work, &slot->link);
	cond_signal(&q->work_cond);
	mutex_unlock(&q->lock);
}

/* @n pieces are in the kernel; some may have come back already. */
static void count_submitted(struct aio_queue *q, unsigned n)
{
	mutex_lock(&q->lock);
	q->submitted += n;
	cond_signal(&q->submitted_cond);
	mutex_unlock(&q->lock);
}

/*
 * How much of a request goes down by O_DIRECT. A write that grows the file: all whole blocks. A write inside it: what
 * lies before the page that holds the file's end, because an older tail may be in the page cache there, or be on
 * its way, and direct writes next to buffered ones of the same page lose data.
 */
static uint64_t direct_bytes(struct aio_device *d, const struct iomap_request *req, uint64_t len, uint64_t size)
{
	uint64_t page = round_down(size, PAGE_BYTES);

	if (req->op == IOMAP_REQ_WRITE && !device_fixed_size(d->dev) && req->pos + len <= size && size % PAGE_BYTES &&
	    req->pos + len > page)
		return req->pos < page ? page - req->pos : 0;
	return round_down(len, d->dev->info.block);
}

/* The tail of @slot is written, or will not be. */
static void tail_end(struct aio_slot *slot)
{
	if (slot->tail)
		sub_acq_rel(&slot->d->tail_writes, 1);
	slot->tail = false;
}

/*
 * May a write go down as slot->direct says? A page takes direct and buffered writes one after the other only, and which a request
 * makes hangs on a size that may move meanwhile: another thread, knowing of a later size, would write to the page of our
 * tail directly. So tails are counted, and a write that meets one waits until it has ended, as for a full queue.
 */
static bool tail_begin(struct aio_slot *slot, uint64_t size)
{
	struct aio_device *d = slot->d;
	uint64_t pos = slot->req->pos, page = round_down(pos + slot->len - 1, PAGE_BYTES), other;
	bool free;

	if (slot->direct == slot->len) {
		fence_full();           /* the size before the count; pairs with the one below */
		if (MUTANT(M_TAIL_NOT_AWAITED) || !load_acquire(&d->tail_writes))
			return true;
		other = load_relaxed(&d->tail_page);
		return pos >= other + PAGE_BYTES || pos + slot->len <= other;
	}
	mutex_lock(&d->lock);
	free = !load_acquire(&d->tail_writes) || load_relaxed(&d->tail_page) == page;
	if (free) {
		store_relaxed(&d->tail_page, page);
		add_acq_rel(&d->tail_writes, 1);
		slot->tail = true;
	}
	mutex_unlock(&d->lock);
	fence_full();                   /* the count before the size */
	if (free && device_size(d->dev) == size)
		return true;
	tail_end(slot);
	return false;
}

/* False: not now, a tail is on its way that must end first. */
static bool slot_fill(struct aio_slot *slot, struct aio_device *d, struct iomap_request *req)
{
	uint64_t size = device_size(d->dev);

	slot->req = req;
	slot->d = d;
	slot->len = request_bytes(req);
	slot->direct = direct_bytes(d, req, slot->len, size);
	slot->start = slot->piece = slot->reached = 0;
	slot->tries = 0;
	slot->tail = false;
	return req->op != IOMAP_REQ_WRITE || device_fixed_size(d->dev) || !slot->len || tail_begin(slot, size);
}

/*
 * The next piece of @slot, from slot->start on. Whole requests go down as they are; else the slot's own iovecs
 * say what is left, as much of it as fits. -EINVAL: not even one block fits, memory is in too many pieces.
 */
static int next_piece(struct aio_slot *slot, struct plat_aio_op *op)
{
	const struct iomap_request *req = slot->req;
	uint64_t left = min_u64(slot->direct - slot->start, BYTES_MAX);

	*op = (struct plat_aio_op){
		.fd = load_acquire(&slot->d->fd),       /* pairs with make_writable() */
		.write = req->op == IOMAP_REQ_WRITE,
		.pos = req->pos + slot->start,
		.tag = slot,
	};
	if (left == slot->len && req->iovcnt <= IOVS_MAX) {
		op->iov = req->iov;
		op->iovcnt = req->iovcnt;
		slot->piece = left;
		return 0;
	}

	uint64_t skip = slot->start, got = 0;
	int n = 0;

	for (int i = 0; i < req->iovcnt && got < left && n < SLOT_IOVS; i++) {
		const struct iovec *v = &req->iov[i];

		if (skip >= v->iov_len) {
			skip -= v->iov_len;
			continue;
		}
		slot->iov[n].iov_base = (char *)v->iov_base + skip;
		slot->iov[n].iov_len = min_u64(v->iov_len - skip, left - got);
		got += slot->iov[n++].iov_len;
		skip = 0;
	}

	uint64_t odd = got % slot->d->dev->info.block;

	for (got -= odd; odd; ) {
		uint64_t cut = min_u64(odd, slot->iov[n - 1].iov_len);

		slot->iov[n - 1].iov_len -= cut;
		n -= slot->iov[n - 1].iov_len == 0;
		odd -= cut;
	}
	if (!got)
		return -EINVAL;
	op->iov = slot->iov;
	op->iovcnt = n;
	slot->piece = got;
	return 0;
}

/* What no debug check caught: release builds must not write where they were asked to read. */
static bool request_ok(const struct aio_slot *slot)
{
	const struct iomap_request *req = slot->req;

	if (slot->len != slot->direct)
		return req->op == IOMAP_REQ_WRITE && !device_fixed_size(slot->d->dev);
	return slot->len && (req->op == IOMAP_REQ_READ || req->op == IOMAP_REQ_WRITE);
}

static void hand_to_kernel(struct aio_slot *slot)
{
	store_release(&slot->in_kernel, true);          /* pairs with piece_done() */
}

static void count_retry(struct aio_slot *slot)
{
	add_relaxed(&slot->d->dev->stats.io_retries, 1);        /* a total; orders nothing */
}

/*
 * The kernel is through with a piece. True: so is the request, with *@result; false: there is work left.
 * Caller owns the slot and takes no lock; this is the whole of the short-transfer logic.
 */
static bool piece_done(struct aio_slot *slot, int64_t got, int64_t *result)
{
	(void)load_acquire(&slot->in_kernel);           /* pairs with hand_to_kernel() */
	*result = got;
	if (got == -EAGAIN || got == -EINTR) {
		count_retry(slot);
		return ++slot->tries > EAGAIN_TRIES;
	}
	if (got < 0)
		return true;
	IOMAP_BUG_ON((uint64_t)got > slot->piece);
	if (MUTANT(M_SHORT_IS_FULL) && slot->req->op == IOMAP_REQ_WRITE)
		got = (int64_t)slot->piece;
	slot->tries = 0;

	bool is_read = slot->req->op == IOMAP_REQ_READ;
	uint64_t end = slot->start + (uint64_t)got;
	bool gained = end > slot->reached;

	slot->reached = max_u64(slot->reached, end);
	*result = (int64_t)slot->reached;
	if (slot->reached == slot->direct)
		return slot->direct == slot->len;
	if (is_read && (!gained || slot->req->pos + slot->reached >= device_size(slot->d->dev)))
		return true;                            /* the end of the file */
	if (!gained) {
		*result = -EIO;
		return true;
	}
	if ((uint64_t)got < slot->piece)
		count_retry(slot);
	slot->start = round_down(slot->reached, slot->d->dev->info.block);
	return false;
}

/* The slot is free before the owner hears of it: whoever waits for room finds it. */
static void finish(struct aio_queue *q, struct aio_slot *slot, int64_t result)
{
	struct iomap_request *req = slot->req;

	tail_end(slot);
	give_slots(q, &slot, 1);
	req->result = result;
	req->done(req);
}

/* --- the completion thread -------------------------------------------------------------------------------- */

static void handle_events(struct aio_queue *q, const struct plat_aio_event *events, unsigned n)
{
	struct iomap_request *done[BATCH];
	unsigned nr_done = 0;

	mutex_lock(&q->lock);
	q->completed += n;
	for (unsigned i = 0; i < n; i++) {
		struct aio_slot *slot = events[i].tag;
		int64_t result;

		if (piece_done(slot, events[i].result, &result)) {
			slot->req->result = result;
			done[nr_done++] = slot->req;
			tail_end(slot);
			list_add_head(&q->free, &slot->link);
		} else {
			list_add_tail(&q->work, &slot->link);
			cond_signal(&q->work_cond);
		}
	}
	mutex_unlock(&q->lock);
	for (unsigned i = 0; i < nr_done; i++)
		done[i]->done(done[i]);
}

static void completion_thread(void *arg)
{
	struct aio_queue *q = arg;
	struct plat_aio_event events[BATCH];

	for (;;) {
		mutex_lock(&q->lock);
		while ((int64_t)(q->submitted - q->completed) <= 0 && !q->stop)
			cond_wait(&q->submitted_cond, &q->lock);
		bool idle = q->submitted == q->completed;

		mutex_unlock(&q->lock);
		if (idle)
			return;                         /* stopped, and nothing is out */

		int n = plat_aio_wait(q->aio, 1, events, BATCH);

		if (IOMAP_WARN_ON(n < 0))
			plat_sleep_ns(WAIT_PAUSE_NS);
		else
			handle_events(q, events, (unsigned)n);
	}
}

/* --- the worker ------------------------------------------------------------------------------------------- */

/* The next piece into the kernel. 0: it is there and the slot no longer ours; or the error that ends the request. */
static int submit_piece(struct aio_queue *q, struct aio_slot *slot)
{
	struct plat_aio_op op;
	int ret = next_piece(slot, &op);

	if (ret)
		return ret;
	if (slot->tries)
		plat_sleep_ns(EAGAIN_PAUSE_NS);
	for (; slot->tries <= EAGAIN_TRIES; slot->tries++) {
		struct aio_device *d = slot->d;

		hand_to_kernel(slot);
		ret = plat_aio_submit(q->aio, &op, 1);
		if (ret == 1) {
			count_submitted(q, 1);
			return 0;
		}
		if (ret != 0 && ret != -EAGAIN && ret != -EINTR)
			return ret;
		add_relaxed(&d->dev->stats.io_retries, 1);      /* a total; orders nothing */
		plat_sleep_ns(EAGAIN_PAUSE_NS);
	}
	return -EAGAIN;
}

/* The bytes behind the last whole block, at their exact length. 0 or -errno. */
static int write_tail(struct aio_queue *q, struct aio_slot *slot)
{
	struct aio_device *d = slot->d;
	const struct iomap_request *req = slot->req;
	uint64_t skip = slot->direct, len = slot->len - slot->direct, filled = 0;

	IOMAP_BUG_ON(req->op != IOMAP_REQ_WRITE);
	if (d->tail_fd < 0) {
		int fd = plat_reopen(load_acquire(&d->fd), O_RDWR);

		if (fd < 0)
			return fd;
		d->tail_fd = fd;
	}
	for (int i = 0; i < req->iovcnt; i++) {
		const struct iovec *v = &req->iov[i];
		uint64_t n = v->iov_len - min_u64(skip, v->iov_len);

		memcpy(q->bounce + filled, (char *)v->iov_base + (v->iov_len - n), n);
		filled += n;
		skip -= v->iov_len - n;
	}
	IOMAP_BUG_ON(filled != len);
	for (uint64_t done = 0; done < len; ) {
		ssize_t ret = plat_pwrite(d->tail_fd, q->bounce + done, len - done, req->pos + slot->direct + done);

		if (ret <= 0)
			return ret ? (int)ret : -EIO;
		done += (uint64_t)ret;
	}
	return 0;
}

static void worker_thread(void *arg)
{
	struct aio_queue *q = arg;

	mutex_lock(&q->lock);
	for (;;) {
		while (list_empty(&q->work) && !q->stop)
			cond_wait(&q->work_cond, &q->lock);
		if (list_empty(&q->work))
			break;

		struct aio_slot *slot = list_first(&q->work, struct aio_slot, link);

		list_del(&slot->link);
		mutex_unlock(&q->lock);
		if (slot->reached < slot->direct) {
			int ret = submit_piece(q, slot);

			if (ret)
				finish(q, slot, ret);
		} else {
			int ret = write_tail(q, slot);

			finish(q, slot, ret ? ret : (int64_t)slot->len);
		}
		mutex_lock(&q->lock);
	}
	mutex_unlock(&q->lock);
}

/* --- the queue -------------------------------------------------------------------------------------------- */

static void queue_free(struct aio_queue *q)
{
	plat_aio_destroy(q->aio);
	cond_fini(&q->work_cond);
	cond_fini(&q->submitted_cond);
	mutex_fini(&q->lock);
	mem_free(&q->mem, q->bounce, BLOCK_MAX);
	mem_free(&q->mem, q->slots, q->depth * sizeof(*q->slots));

	struct mem mem = q->mem;        /* it accounts for *q, too */

	mem_free(&mem, q, sizeof(*q));
	mem_fini(&mem);
}

static void ask_to_stop(struct aio_queue *q)
{
	mutex_lock(&q->lock);
	q->stop = true;
	cond_signal(&q->submitted_cond);
	cond_signal(&q->work_cond);
	mutex_unlock(&q->lock);
}

int aio_queue_create(unsigned depth, struct aio_queue **out)
{
	struct mem mem;
	int ret;

	if (!depth || depth > AIO_QUEUE_DEPTH_MAX)
		return -EINVAL;
	mem_init_malloc(&mem);
	struct aio_queue *q = mem_alloc(&mem, sizeof(*q));

	if (!q) {
		mem_fini(&mem);
		return -ENOMEM;
	}
	q->mem = mem;
	q->depth = depth;
	store_relaxed(&q->refs, 1);             /* nobody else knows it yet */
	mutex_init(&q->lock, LOCK_DEVICE);
	cond_init(&q->submitted_cond);
	cond_init(&q->work_cond);
	list_init(&q->free);
	list_init(&q->work);
	ret = -ENOMEM;
	q->slots = mem_alloc(&q->mem, depth * sizeof(*q->slots));
	q->bounce = mem_alloc(&q->mem, BLOCK_MAX);
	if (!q->slots || !q->bounce)
		goto free_queue;
	for (unsigned i = 0; i < depth; i++)
		list_add_tail(&q->free, &q->slots[i].link);
	ret = plat_aio_setup(depth, &q->aio);
	if (ret)
		goto free_queue;
	ret = thread_create(&q->completion, "iomap-aio", completion_thread, q);
	if (ret)
		goto free_queue;
	ret = thread_create(&q->worker, "iomap-aio-work", worker_thread, q);
	if (ret)
		goto stop_completion;
	*out = q;
	return 0;

stop_completion:
	ask_to_stop(q);
	thread_join(&q->completion);
free_queue:
	queue_free(q);
	return ret;
}

struct aio_queue *aio_queue_get(struct aio_queue *q)
{
	uint32_t refs = add_relaxed(&q->refs, 1);       /* the caller has one already */

	IOMAP_BUG_ON(!refs);
	(void)refs;
	return q;
}

void aio_queue_put(struct aio_queue *q)
{
	might_sleep();
	if (sub_acq_rel(&q->refs, 1) != 1)
		return;
	ask_to_stop(q);
	thread_join(&q->worker);
	thread_join(&q->completion);
	queue_free(q);
}

/* --- operations ------------------------------------------------------------------------------------------- */

/*
 * Starts requests in the slots given, from the front. Returns how many were started, or the error that the first
 * one met; the slots of the rest are still the caller's. A bare tail ends the run that goes to the kernel in one
 * call.
 */
static int start(struct aio_queue *q, struct aio_device *d, struct iomap_request **reqs, struct aio_slot **slots,
		 unsigned n)
{
	struct plat_aio_op ops[BATCH];
	unsigned run = 0, filled = 0;
	int ret = 0;

	while (run < n) {
		filled = run;
		if (!slot_fill(slots[run], d, reqs[run]))
			break;
		filled = run + 1;
		ret = request_ok(slots[run]) ? 0 : -EINVAL;
		if (ret || !slots[run]->direct)
			break;
		ret = next_piece(slots[run], &ops[run]);
		if (ret)
			break;
		hand_to_kernel(slots[run]);
		run++;
	}
	if (run) {
		ret = plat_aio_submit(q->aio, ops, run);
		if (ret > 0)
			count_submitted(q, (unsigned)ret);
	} else if (!ret && filled) {
		give_work(q, slots[0]);
		return 1;
	}
	for (unsigned i = ret > 0 ? (unsigned)ret : 0; i < filled; i++)
		tail_end(slots[i]);     /* they did not go */
	return ret;
}

static int aio_submit(struct iomap_device *dev, struct iomap_request **reqs, unsigned n)
{
	struct aio_device *d = dev->priv;
	struct aio_queue *q = d->q;
	struct aio_slot *slots[BATCH];
	unsigned taken = 0, have = 0, used = 0;
	int ret = 0;

	while (taken < n) {
		if (used == have) {
			used = 0;
			have = take_slots(q, slots, (unsigned)min_u64(n - taken, BATCH));
			if (!have)
				break;
		}
		ret = start(q, d, reqs + taken, slots + used, have - used);
		if (ret <= 0)
			break;
		used += (unsigned)ret;
		taken += (unsigned)ret;
	}
	give_slots(q, slots + used, have - used);
	return taken || ret > 0 ? (int)taken : ret;
}

static int aio_flush(struct iomap_device *dev, struct iomap_request *req)
{
	struct aio_device *d = dev->priv;

	req->result = plat_fdatasync(load_acquire(&d->fd));
	req->done(req);
	return 0;
}

static int aio_set_size(struct iomap_device *dev, uint64_t size)
{
	struct aio_device *d = dev->priv;

	return plat_ftruncate(load_acquire(&d->fd), size);
}

static int aio_allocate(struct iomap_device *dev, uint64_t pos, uint64_t len, int mode)
{
	struct aio_device *d = dev->priv;

	return plat_fallocate(load_acquire(&d->fd), mode, pos, len);
}

static int aio_seek(struct iomap_device *dev, uint64_t pos, int whence, uint64_t *out)
{
	struct aio_device *d = dev->priv;

	return plat_seek(load_acquire(&d->fd), pos, whence, out);
}

static void close_if_open(int fd)
{
	if (fd >= 0)
		plat_close(fd);
}

static void aio_destroy(struct iomap_device *dev)
{
	struct aio_device *d = dev->priv;
	struct aio_queue *q = d->q;
	int fd = load_acquire(&d->fd);

	/* The caller's descriptor may share the open file with ours and keep the lock. */
	if (d->claimed)
		plat_unlock_byte(fd, CLAIM_BYTE);
	close_if_open(d->tail_fd);
	close_if_open(d->old_fd);
	close_if_open(fd);
	cond_fini(&d->turn);
	mutex_fini(&d->lock);
	mem_free(&q->mem, d, sizeof(*d));
	aio_queue_put(q);
}

static const struct iomap_device_ops file_ops = {
	.submit = aio_submit,
	.flush = aio_flush,
	.set_size = aio_set_size,
	.allocate = aio_allocate,
	.seek = aio_seek,
	.destroy = aio_destroy,
};

static const struct iomap_device_ops blockdev_ops = {
	.submit = aio_submit,
	.flush = aio_flush,
	.allocate = aio_allocate,
	.destroy = aio_destroy,
};

/* --- what only kernel files have -------------------------------------------------------------------------- */

/* claim() and make_writable() make system calls, so they take turns by a flag, not under the lock. */
static void turn_begin(struct aio_device *d)
{
	mutex_lock(&d->lock);
	while (d->changing)
		cond_wait(&d->turn, &d->lock);
	d->changing = true;
	mutex_unlock(&d->lock);
}

static void turn_end(struct aio_device *d)
{
	mutex_lock(&d->lock);
	d->changing = false;
	cond_signal(&d->turn);
	mutex_unlock(&d->lock);
}

static bool writable(int fd)
{
	return (plat_fd_flags(fd) & O_ACCMODE) != O_RDONLY;
}

static bool same_inode(const struct stat *a, const struct stat *b)
{
	if (S_ISBLK(a->st_mode) && S_ISBLK(b->st_mode))
		return a->st_rdev == b->st_rdev;
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static int aio_fd(struct iomap_device *dev)
{
	struct aio_device *d = dev->priv;

	return load_acquire(&d->fd);
}

static int aio_fstat(struct iomap_device *dev, struct stat *st)
{
	return plat_fstat(aio_fd(dev), st);
}

static int aio_fsync(struct iomap_device *dev)
{
	return plat_fsync(aio_fd(dev));
}

static int aio_claim(struct iomap_device *dev)
{
	struct aio_device *d = dev->priv;
	int fd, ret;

	turn_begin(d);
	fd = load_acquire(&d->fd);
	ret = plat_lock_byte(fd, CLAIM_BYTE, writable(fd));
	if (!ret)
		d->claimed = true;
	turn_end(d);
	return ret;
}

/*
 * The lock on the claim byte goes from the old descriptor to the new one. They are two open files to the kernel,
 * whose locks exclude each other, so for a moment neither has it; who slips in there makes this fail.
 */
static int move_claim(struct aio_device *d, int from, int to)
{
	int ret;

	if (!d->claimed)
		return 0;
	ret = plat_unlock_byte(from, CLAIM_BYTE);
	if (ret)
		return ret;
	ret = plat_lock_byte(to, CLAIM_BYTE, true);
	if (ret)
		d->claimed = !plat_lock_byte(from, CLAIM_BYTE, false);
	return ret;
}

static int make_writable(struct aio_device *d, const char *path)
{
	int old = load_acquire(&d->fd), ret;
	struct stat st;

	if (writable(old))
		return 0;

	int fd = plat_open(path, O_RDWR | O_DIRECT, 0);

	if (fd < 0)
		return fd;
	ret = plat_fstat(fd, &st);
	if (!ret && !same_inode(&st, &d->id))
		ret = -ESTALE;
	if (!ret)
		ret = move_claim(d, old, fd);
	if (ret) {
		plat_close(fd);
		return ret;
	}
	d->old_fd = old;
	store_release(&d->fd, fd);              /* pairs with next_piece() */
	return 0;
}

static int aio_make_writable(struct iomap_device *dev, const char *path)
{
	struct aio_device *d = dev->priv;
	int ret;

	turn_begin(d);
	ret = make_writable(d, path);
	turn_end(d);
	return ret;
}

static const struct device_file_ops aio_file_ops = {
	.fd = aio_fd,
	.fstat = aio_fstat,
	.make_writable = aio_make_writable,
	.claim = aio_claim,
	.fsync = aio_fsync,
};

/* --- open ------------------------------------------------------------------------------------------------- */

/* What cannot be a device. */
static int check_type(mode_t mode)
{
	if (S_ISREG(mode) || S_ISBLK(mode))
		return 0;
	return S_ISDIR(mode) ? -EISDIR : -ENODEV;
}

static int read_info(int fd, const struct stat *st, struct iomap_device_info *info)
{
	struct plat_dio_align align;
	int ret = plat_dio_align(fd, &align);

	if (ret)
		return ret;
	if (!align.offset || align.offset > BLOCK_MAX || align.mem > MEM_ALIGN_MAX)
		return -EOPNOTSUPP;
	*info = (struct iomap_device_info){
		.block = (uint32_t)max_u64(BLOCK_MIN, align.offset),
		.mem_align = align.mem,
		.max_bytes = BYTES_MAX,
		.optimal_io = (uint64_t)st->st_blksize,
		.size = (uint64_t)st->st_size,
	};
	return S_ISBLK(st->st_mode) ? plat_blockdev_size(fd, &info->size) : 0;
}

int device_aio_create(struct aio_queue *q, int fd, struct iomap_device **out)
{
	struct iomap_device_info info;
	struct stat st;
	int ret;

	ret = plat_fstat(fd, &st);
	if (!ret)
		ret = check_type(st.st_mode);
	if (!ret)
		ret = read_info(fd, &st, &info);
	if (ret)
		return ret;

	struct aio_device *d = mem_alloc(&q->mem, sizeof(*d));

	if (!d)
		return -ENOMEM;
	d->q = aio_queue_get(q);
	d->id = st;
	d->old_fd = d->tail_fd = -1;
	store_relaxed(&d->fd, fd);              /* nobody else knows it yet */
	mutex_init(&d->lock, LOCK_DEVICE);
	cond_init(&d->turn);
	ret = iomap_device_create(S_ISBLK(st.st_mode) ? &blockdev_ops : &file_ops, d, &info, &d->dev);
	if (ret) {
		cond_fini(&d->turn);
		mutex_fini(&d->lock);
		mem_free(&q->mem, d, sizeof(*d));
		aio_queue_put(q);
		return ret;
	}
	d->dev->file = &aio_file_ops;
	*out = d->dev;
	return 0;
}

/* @fd is the device's on success. */
static int create_with_queue(int fd, struct iomap_device **out)
{
	struct aio_queue *q;
	int ret = aio_queue_create(DEPTH_DEFAULT, &q);

	if (ret)
		return ret;
	ret = device_aio_create(q, fd, out);
	aio_queue_put(q);                       /* the device has its own reference */
	return ret;
}

/* Empties the file, unless a cache has claimed it. */
static int truncate_new(struct iomap_device *dev)
{
	struct aio_device *d = dev->priv;
	int fd = load_acquire(&d->fd), ret;

	if (device_fixed_size(dev) || !device_size(dev))
		return 0;
	ret = plat_lock_byte(fd, CLAIM_BYTE, true);
	if (ret)
		return ret;
	ret = device_set_size(dev, 0);
	plat_unlock_byte(fd, CLAIM_BYTE);
	return ret;
}

int iomap_device_open_aio(const char *path, int oflags, mode_t mode, struct iomap_device **out)
{
	struct iomap_device *dev;
	struct stat st;
	int ret, fd;

	if (!path || !out || (oflags & ~OFLAGS_KNOWN))
		return -EINVAL;
	if ((oflags & O_TRUNC) && (oflags & O_ACCMODE) == O_RDONLY)
		return -EINVAL;
	/*
	 * A fifo would block in open(), a device might do something: look first. The descriptor is looked at
	 * again.
	 */
	if ((oflags & (O_CREAT | O_EXCL)) != (O_CREAT | O_EXCL) && !plat_stat(path, &st)) {
		ret = check_type(st.st_mode);
		if (ret)
			return ret;
	}
	/* Writing needs to read what stands beside the new bytes. */
	if ((oflags & O_ACCMODE) == O_WRONLY)
		oflags = (oflags & ~O_ACCMODE) | O_RDWR;
	fd = plat_open(path, (oflags & ~O_TRUNC) | O_DIRECT, mode);
	if (fd < 0)
		return fd == -EINVAL ? -EOPNOTSUPP : fd;
	ret = create_with_queue(fd, &dev);
	if (ret) {
		plat_close(fd);
		return ret;
	}
	if (oflags & O_TRUNC) {
		ret = truncate_new(dev);
		if (ret) {
			device_put(dev);
			return ret;
		}
	}
	*out = dev;
	return 0;
}

int iomap_device_open_fd(int fd, struct iomap_device **out)
{
	struct stat st;
	int ret, own, flags;

	if (!out)
		return -EINVAL;
	ret = plat_fstat(fd, &st);
	if (!ret)
		ret = check_type(st.st_mode);
	if (ret)
		return ret;
	flags = plat_fd_flags(fd);
	if (flags < 0)
		return flags;
	/* With O_APPEND every write would go to the end, wherever it belongs. */
	if (!(flags & O_DIRECT) || (flags & O_APPEND))
		return -EINVAL;
	own = plat_dup(fd);
	if (own < 0)
		return own;
	ret = create_with_queue(own, out);
	if (ret)
		plat_close(own);
	return ret;
}
